/*
 * launcher is PID 1 of every sandbox. It is started long before a program is
 * known, waits for exactly one program on standard input, lets it run as its
 * child, and tells how it ended.
 *
 *	launcher python|bash [own-pipes] [preload=MODULE,...]
 *
 * With "own-pipes" the streams below are not those it was started with but pipes
 * of its own making, at the same descriptors: the server opens the other ends by
 * way of /proc, and nothing stands between it and the program. Only the byte 'P'
 * goes to the standard output it was started with, to say that they are there;
 * the byte 'T' on standard input says that the server has taken them. From then
 * on a server that dies is seen at once, and everything here ends with it.
 *
 * Python imports the modules of "preload" before it waits.
 *
 * Standard input carries one frame, then the program's own standard input:
 *
 *	4 bytes   "CES1"
 *	16 bytes  nonce
 *	4 bytes   length of the code, big-endian
 *	n bytes   the code
 *
 * One byte 'R' on standard output says that the interpreter has booted and
 * waits; nothing of any program has run before it. One byte 'S' says that the
 * program is about to start: in the pipe LIFE where there is one, since a program
 * can open its standard output for reading and take what is not read yet; else
 * on standard output. When the program has ended, and every process it left
 * behind has been killed, 20 bytes end standard error: the nonce, then the
 * wait status as of waitpid(2), big-endian. A program never sees the nonce, so
 * it cannot write that report in the launcher's place.
 *
 * Why a PID 1 of our own and not tini: an exit code alone cannot tell
 * `exit 143` from a death by SIGTERM, and a report inside the stream arrives
 * before the exit event has made its way through the shim and containerd.
 *
 * As PID 1 it ignores every signal a program sends it, reaps orphans, and
 * when it ends the kernel ends whatever else is left.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	NONCE = 16,
	HEADER = 4 + NONCE + 4,
	/* Exit codes of the launcher itself, before any program has started. */
	EX_NO_FRAME = 120, /* standard input ended before the frame did */
	EX_BROKEN = 121,   /* the sandbox is not as the image promises */
	EX_NO_BOOT = 122,  /* the interpreter ended before it had a program */
	/* And after: */
	EX_NO_SERVER = 123, /* nobody reads what the program writes */
	/* Where a child of ours reads the permission to start. */
	GATE = 3,
	/* The writing end of a pipe that holds 'S' at most: when nobody holds the
	 * other end, the server is dead. No program can get at it. */
	LIFE = 15,
	/* Beyond any other descriptor that is made here. */
	HIGH = 16,
};

struct language {
	const char *name, *file, *path;
	char *const *argv;
	/* A variable that is set for the interpreter, or NULL. */
	const char *variable, *value;
};

/* How many processors os.cpu_count() tells of, so that a Pool() is no larger
 * than the sandbox: -I makes Python deaf to PYTHON_CPU_COUNT, which has it. */
static char cpu_count[32] = "cpu_count=default";
/* What sitecustomize.py knows us by; "=" and names of modules follow. */
static char launched[4096] = "launcher";
static char *const python_argv[] = {
	"python3", "-I", "-B", "-u", "-X", cpu_count, "-X", launched, "/tmp/main.py", NULL,
};
static char *const bash_argv[] = {"bash", "/tmp/main.sh", NULL};

/* Each interpreter boots, says on standard output that it is ready, and waits
 * at the gate, all before it opens the file: Python in sitecustomize.py, bash
 * in gate.sh, which it reads because of BASH_ENV. */
static const struct language languages[] = {
	{"python", "/tmp/main.py", "/usr/bin/python3", python_argv, NULL, NULL},
	{"bash", "/tmp/main.sh", "/bin/bash", bash_argv, "BASH_ENV", "/usr/lib/code-execution-sandbox/gate.sh"},
};

static void die(int code)
{
	_exit(code);
}

/* broken says why the launcher gives up; only before a program has started. */
static void broken(const char *what)
{
	const char *why = strerror(errno);
	(void)!write(2, "launcher: ", 10);
	(void)!write(2, what, strlen(what));
	(void)!write(2, ": ", 2);
	(void)!write(2, why, strlen(why));
	(void)!write(2, "\n", 1);
	die(EX_BROKEN);
}

static void read_exactly(void *buf, size_t n)
{
	for (char *p = buf; n > 0;) {
		ssize_t got = read(0, p, n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			die(EX_NO_FRAME);
		p += got;
		n -= (size_t)got;
	}
}

static int write_all(int fd, const void *buf, size_t n)
{
	for (const char *p = buf; n > 0;) {
		ssize_t put = write(fd, p, n);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0 && errno == EAGAIN) {
			/* A program can make the pipe it shares with us non-blocking. */
			struct pollfd room = {.fd = fd, .events = POLLOUT};
			poll(&room, 1, -1);
			continue;
		}
		if (put < 0)
			return -1;
		p += put;
		n -= (size_t)put;
	}
	return 0;
}

static uint32_t big_endian(const unsigned char *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* child becomes the interpreter. */
static void child(const struct language *lang, int gate)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL); /* an ignored signal would outlive execve */
	if (setsid() < 0)
		broken("setsid");
	if (dup2(gate, GATE) < 0)
		broken("dup2");
	if (gate != GATE)
		close(gate);
	/* The other end of the gate closes by itself: O_CLOEXEC. */
	if (fcntl(GATE, F_SETFD, 0) < 0)
		broken("fcntl");
	const char *count = getenv("PYTHON_CPU_COUNT");
	const size_t name = sizeof "cpu_count=" - 1;
	if (count != NULL && strlen(count) < sizeof cpu_count - name)
		strcpy(cpu_count + name, count);
	if (lang->variable != NULL && setenv(lang->variable, lang->value, 1) < 0)
		broken("setenv");
	execv(lang->path, lang->argv);
	broken(lang->path);
}

/* The interpreter, whose death before it has a program is the end of ours: the
 * server reads that where it waits for 'R'. */
static pid_t interpreter;

static void on_child(int sig)
{
	(void)sig;
	if (waitpid(interpreter, NULL, WNOHANG) == interpreter)
		die(EX_NO_BOOT);
}

/* watch_child decides whether on_child sees a death; it is not between fork and
 * the moment when the child is known. */
static void watch_child(int how)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	if (sigprocmask(how, &set, NULL) < 0)
		broken("sigprocmask");
}

/* The server's ends of pipes of our own, which keep these whole until the server
 * has taken them. */
static int held[4];
/* What tells that the server is dead. */
static int life = 2;

/* make_streams puts a pipe in place of each standard stream. */
static void make_streams(void)
{
	int relayed = fcntl(1, F_DUPFD_CLOEXEC, HIGH);
	if (relayed < 0)
		broken("fcntl");
	for (int fd = 0; fd < 3; fd++) {
		int pipe[2];
		if (pipe2(pipe, O_CLOEXEC) < 0)
			broken("pipe2");
		int ours = pipe[fd == 0 ? 0 : 1];
		held[fd] = pipe[fd == 0 ? 1 : 0];
		if (dup2(ours, fd) < 0)
			broken("dup2");
		close(ours);
	}
	int pipe[2];
	if (pipe2(pipe, O_CLOEXEC) < 0)
		broken("pipe2");
	if (dup3(pipe[1], LIFE, O_CLOEXEC) < 0)
		broken("dup3");
	close(pipe[1]);
	held[3] = pipe[0];
	life = LIFE;
	if (write_all(relayed, "P", 1) < 0)
		die(EX_BROKEN);
	close(relayed);
}

/* release_streams waits until the server has taken its ends, and leaves them to
 * it alone. */
static void release_streams(void)
{
	char taken;
	read_exactly(&taken, 1);
	if (taken != 'T') {
		errno = EPROTO;
		broken("streams");
	}
	for (size_t i = 0; i < sizeof held / sizeof *held; i++)
		close(held[i]);
}

static void on_nothing(int sig)
{
	(void)sig;
}

/* await_end reaps until the program has ended, and returns its wait status. A
 * server that dies leaves nobody who would end the program at its limit: then
 * everything here ends. */
static int await_end(void)
{
	sigset_t none;
	sigemptyset(&none);
	if (signal(SIGCHLD, on_nothing) == SIG_ERR)
		broken("signal");
	for (;;) {
		int status;
		pid_t got = waitpid(-1, &status, WNOHANG);
		if (got < 0 && errno != EINTR)
			die(EX_BROKEN);
		/* A child that has made us its tracer, where the kernel lets it (gVisor),
		 * has not ended when it stops. We trace nobody. */
		if (got > 0 && WIFSTOPPED(status)) {
			long sig = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
			ptrace(PTRACE_DETACH, got, 0L, sig);
			continue;
		}
		if (got == interpreter)
			return status;
		if (got != 0)
			continue;
		/* SIGCHLD is blocked but for this wait, so none is missed. */
		struct pollfd server = {.fd = life};
		int n = ppoll(&server, 1, NULL, &none);
		if (n > 0)
			die(EX_NO_SERVER);
		if (n < 0 && errno != EINTR)
			sigsuspend(&none);
	}
}

int main(int argc, char **argv)
{
	const struct language *lang = NULL;
	int pipes = 0, wrong = argc < 2;
	const size_t name = strlen(launched);
	for (size_t i = 0; !wrong && i < sizeof languages / sizeof *languages; i++)
		if (strcmp(argv[1], languages[i].name) == 0)
			lang = &languages[i];
	for (int i = 2; i < argc; i++) {
		const char *modules = argv[i] + sizeof "preload" - 1;
		if (strcmp(argv[i], "own-pipes") == 0)
			pipes = 1;
		else if (strncmp(argv[i], "preload=", sizeof "preload") == 0 && strlen(modules) < sizeof launched - name)
			strcpy(launched + name, modules);
		else
			wrong = 1;
	}
	if (lang == NULL || wrong) {
		static const char other[] = "launcher: the image and the server are of different versions: build and import the image anew\n";
		(void)!write(2, other, sizeof other - 1);
		die(EX_BROKEN);
	}

	/* Keep the nonce from the program: no /proc/1/mem, no core. */
	if (prctl(PR_SET_DUMPABLE, 0) < 0)
		broken("prctl");

	if (pipes)
		make_streams();
	int gate[2];
	if (pipe2(gate, O_CLOEXEC) < 0)
		broken("pipe2");
	if (signal(SIGCHLD, on_child) == SIG_ERR)
		broken("signal");
	watch_child(SIG_BLOCK);
	interpreter = fork();
	if (interpreter < 0)
		broken("fork");
	if (interpreter == 0)
		child(lang, gate[0]);
	watch_child(SIG_UNBLOCK);
	close(gate[0]);

	if (pipes)
		release_streams();
	unsigned char header[HEADER];
	read_exactly(header, sizeof header);
	watch_child(SIG_BLOCK); /* from here on it is waited for in await_end */
	if (memcmp(header, "CES1", 4) != 0) {
		errno = EPROTO;
		broken("frame");
	}
	int file = open(lang->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (file < 0)
		broken(lang->file);
	static char buf[65536];
	for (uint32_t left = big_endian(header + 4 + NONCE); left > 0;) {
		uint32_t n = left < sizeof buf ? left : sizeof buf;
		read_exactly(buf, n);
		if (write_all(file, buf, n) < 0)
			broken(lang->file);
		left -= n;
	}
	close(file);
	if (write_all(pipes ? LIFE : 1, "S", 1) < 0)
		broken("start");

	/* The streams are the program's from here on: their ends must be seen
	 * when its processes end, not when we do. */
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		broken("/dev/null");
	close(null);
	if (write_all(gate[1], "G", 1) < 0)
		broken("gate");
	close(gate[1]);

	int status = await_end();
	/* Nothing may write after the report. */
	kill(-1, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
		;

	unsigned char report[NONCE + 4];
	memcpy(report, header + 4, NONCE);
	for (int i = 0; i < 4; i++)
		report[NONCE + i] = (unsigned char)((uint32_t)status >> (24 - 8 * i));
	(void)write_all(2, report, sizeof report);
	/* The end of a PID 1 is work for the kernel, for the shim and for containerd.
	 * It can wait until the server ends us, and calls come first. */
	struct pollfd server = {.fd = life};
	while (pipes && poll(&server, 1, -1) < 0 && errno == EINTR)
		;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
