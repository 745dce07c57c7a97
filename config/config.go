// Package config holds what an operator can set: the file's shape, the default
// of every key, the ranges, and where the bearer tokens come from.
//
// A file is TOML. Every key has a default. An unknown key, a wrong type and a
// value out of range are errors that name the key, its line and what is
// allowed, and one Load reports all of them at once. config.toml.dist beside
// this file lists every key with its default for people.
//
// A new key is one struct field with its tags, its default, and its entry in
// config.toml.dist; the tests name what was forgotten.
package config

import "errors"

// DefaultPath is the file that Load reads when none is named.
const DefaultPath = "/etc/code-execution-sandbox/config.toml"

// DefaultTokenPath is where an installed service keeps its token. The service
// gets it as a credential; commands that are run beside it look there.
const DefaultTokenPath = "/etc/code-execution-sandbox/token"

// ErrNoToken is the kind of error of Tokens when no source has a token.
var ErrNoToken = errors.New("no bearer token")

// Config is the whole configuration. The tags of a field say
//
//	toml    its key
//	range   the smallest and the largest number or size allowed
//	oneof   the strings allowed
//	is      the name of an entry in checks, for other strings
//	secret  that a wrong value is not repeated in an error: people paste tokens
//	        where the name of a variable is wanted
type Config struct {
	// File is the file that was read, empty when there was none.
	File string

	// HTTPAddr is the TCP address to listen on; port 0 picks a free one.
	HTTPAddr string `toml:"http_addr" is:"address"`
	// AuthTokenEnv names the environment variable that holds the tokens.
	AuthTokenEnv string `toml:"auth_token_env" is:"variable" secret:"true"`
	// AuthTokenFile is a file of tokens, empty for none. See Config.Tokens.
	AuthTokenFile string `toml:"auth_token_file" is:"optional path" secret:"true"`
	// AllowedOrigins lists the Origin headers accepted beside none at all and,
	// on a loopback address, those of this host.
	AllowedOrigins []string `toml:"allowed_origins" is:"origin"`
	// AllowedHosts lists the Host headers accepted, without regard to the port
	// unless one is given. Empty accepts every Host, but on a loopback address
	// only the names of this host.
	AllowedHosts []string `toml:"allowed_hosts" is:"host"`
	// MaxConnections bounds the open TCP connections.
	MaxConnections int `toml:"max_connections" range:"1..65536"`
	// ShutdownDelay is how long calls are still taken after SIGTERM, while
	// /healthz refuses them already.
	ShutdownDelay Seconds `toml:"shutdown_delay_seconds" range:"0..300"`
	// ShutdownGrace is how long running calls may go on after that.
	ShutdownGrace Seconds `toml:"shutdown_grace_seconds" range:"0..3600"`
	// DataDir keeps what survives a restart of the host.
	DataDir string `toml:"data_dir" is:"path"`
	// RunDir keeps FIFOs and sockets; it is emptied by a restart of the host.
	RunDir string `toml:"run_dir" is:"short path"`

	Logging    Logging    `toml:"logging"`
	Containerd Containerd `toml:"containerd"`
	Docker     Docker     `toml:"docker"`
	Sandbox    Sandbox    `toml:"sandbox"`
	Queue      Queue      `toml:"queue"`
	Pool       Pool       `toml:"pool"`
	Result     Result     `toml:"result"`
}

// Logging is the server's own log on standard error.
type Logging struct {
	// Level debug also logs the submitted code and the output.
	Level  string `toml:"level" oneof:"debug|info|warn|error"`
	Format string `toml:"format" oneof:"text|json"`
}

// Private is the Containerd.Address that asks for a daemon of our own.
const Private = "private"

// Containerd says which daemon runs the sandboxes, and how.
type Containerd struct {
	// Address is a socket's path, Private, or empty: the system's containerd,
	// then Docker's, then a private one.
	Address     string `toml:"address" is:"containerd"`
	Namespace   string `toml:"namespace" is:"namespace"`
	Snapshotter string `toml:"snapshotter" is:"name"`
	// Runtime is the name of the shim.
	Runtime string `toml:"runtime" is:"runtime"`
	// RuntimeBinary is the OCI runtime that the shim calls, empty for its own
	// default.
	RuntimeBinary string `toml:"runtime_binary" is:"optional program"`
	// PrivateBinary is the containerd of a private daemon, empty for the one in
	// PATH.
	PrivateBinary string `toml:"private_binary" is:"optional program"`
}

// Docker is where the runtime image is fetched from.
type Docker struct {
	// Socket is Docker's API socket, empty for that of DOCKER_HOST, else
	// /var/run/docker.sock.
	Socket string `toml:"socket" is:"optional path"`
}

// Sandbox is what one call gets.
type Sandbox struct {
	Image          string  `toml:"image" is:"image"`
	MaxConcurrent  int     `toml:"max_concurrent" range:"1..256"`
	DefaultTimeout Seconds `toml:"default_timeout_seconds" range:"1..3600"`
	MaxTimeout     Seconds `toml:"max_timeout_seconds" range:"1..3600"`
	MaxCodeBytes   Size    `toml:"max_code_bytes" range:"1k..16m"`
	MaxStdinBytes  Size    `toml:"max_stdin_bytes" range:"0..64m"`
	// MaxOutputBytes is kept of stdout and of stderr each.
	MaxOutputBytes Size `toml:"max_output_bytes" range:"1k..64m"`
	// MemoryLimit covers the files in /tmp and /dev/shm too; there is no swap.
	MemoryLimit Size `toml:"memory_limit" range:"32m..1024g"`
	CPULimit    CPUs `toml:"cpu_limit" range:"0.05..256"`
	// PIDsLimit counts processes and threads.
	PIDsLimit int `toml:"pids_limit" range:"16..4096"`
	// TmpfsSize and ShmSize never are zero: to tmpfs that means half the RAM.
	TmpfsSize     Size `toml:"tmpfs_size" range:"1m..1024g"`
	ShmSize       Size `toml:"shm_size" range:"64k..1024g"`
	UserNamespace bool `toml:"user_namespace"`
	// UIDBase is the first host uid of the sandboxes; each that exists at one
	// time has 65536 of its own from there on.
	UIDBase      int64  `toml:"uid_base" range:"65536..4294836224"`
	CgroupParent string `toml:"cgroup_parent" is:"cgroup"`
	// AppArmorProfile is for hosts with AppArmor; empty uses none.
	AppArmorProfile string `toml:"apparmor_profile" is:"optional profile"`
	// AllowMissing names the protections that this host may do without. The
	// names are those of the package protection.
	AllowMissing []string `toml:"allow_missing" oneof:"user_namespaces|apparmor|swap_limit|total_limits"`
}

// Queue is where calls wait while Sandbox.MaxConcurrent others run.
type Queue struct {
	// MaxWaiting zero refuses at once.
	MaxWaiting int     `toml:"max_waiting" range:"0..10000"`
	MaxWait    Seconds `toml:"max_wait_seconds" range:"1..3600"`
}

// Pool is how many sandboxes stand prepared per language, 0 = none.
type Pool struct {
	Python int `toml:"python" range:"0..256"`
	Bash   int `toml:"bash" range:"0..256"`
	// Preload names the modules that each Python has imported before its program
	// comes.
	Preload []string `toml:"preload" is:"module"`
	// MaxAge is the age at which an unused sandbox is replaced.
	MaxAge Seconds `toml:"max_age_seconds" range:"10..86400"`
}

// Result is what the model sees of a run.
type Result struct {
	MaxStdoutChars int `toml:"max_stdout_chars" range:"500..1000000"`
	MaxStderrChars int `toml:"max_stderr_chars" range:"500..1000000"`
	// Structured adds structuredContent, which some clients show instead of the
	// text.
	Structured bool `toml:"structured"`
}

// Default is the configuration of an empty file. It is valid.
func Default() Config {
	return Config{
		HTTPAddr:       ":8788",
		AuthTokenEnv:   "SANDBOX_MCP_TOKEN",
		AllowedOrigins: []string{},
		AllowedHosts:   []string{},
		MaxConnections: 256,
		ShutdownDelay:  0,
		ShutdownGrace:  20,
		DataDir:        "/var/lib/code-execution-sandbox",
		RunDir:         "/run/code-execution-sandbox",
		Logging:        Logging{Level: "info", Format: "text"},
		Containerd: Containerd{
			Namespace:   "code-execution-sandbox",
			Snapshotter: "overlayfs",
			Runtime:     "io.containerd.runc.v2",
		},
		Sandbox: Sandbox{
			Image:          "code-execution-sandbox-runtime:latest",
			MaxConcurrent:  4,
			DefaultTimeout: 10,
			MaxTimeout:     60,
			MaxCodeBytes:   64 << 10,
			MaxStdinBytes:  1 << 20,
			MaxOutputBytes: 1 << 20,
			MemoryLimit:    1 << 30,
			CPULimit:       1,
			PIDsLimit:      128,
			TmpfsSize:      64 << 20,
			ShmSize:        16 << 20,
			UserNamespace:  true,
			// The first uid after systemd's range for containers, 524288 to
			// 1879048191 (systemd, "Users, Groups, UIDs and GIDs").
			UIDBase:      0x70000000,
			CgroupParent: "/code-execution-sandbox",

			AppArmorProfile: "code-execution-sandbox",
			AllowMissing:    []string{},
		},
		Queue:  Queue{MaxWaiting: 32, MaxWait: 30},
		Pool:   Pool{Python: 4, Bash: 1, Preload: []string{}, MaxAge: 600},
		Result: Result{MaxStdoutChars: 16000, MaxStderrChars: 8000},
	}
}
