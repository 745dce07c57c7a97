// Package clientconfig writes the entry that a known MCP client needs to use
// this server: ready to paste, with a time limit that fits the server's, and
// without the token wherever the client can read it from a variable.
package clientconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"text/template"
	"time"
)

// ServerName is the name under which the entries list this server. Clients put
// it before the tool's name, such as code_exec_execute_code.
const ServerName = "code_exec"

// Placeholder stands for the token where a client cannot read a variable.
const Placeholder = "PUT-THE-TOKEN-HERE"

// callMargin is what a call may take beyond its wait and its run: preparing a
// sandbox, disposing of it, and the network.
const callMargin = 30 * time.Second

// Options describe the server to a client.
type Options struct {
	// URL is the whole address of the endpoint, such as
	// http://127.0.0.1:8788/mcp.
	URL string
	// TokenEnv names the variable, on the client's side, that holds the token.
	TokenEnv string
	// Token is written into the entry itself. Empty means a reference to
	// TokenEnv, or Placeholder where the client has no such references.
	Token string
	// MaxTimeout and MaxWait are the server's sandbox.max_timeout_seconds and
	// queue.max_wait_seconds.
	MaxTimeout, MaxWait time.Duration
}

// CallTimeout is how long a client must be ready to wait for one call.
func (o Options) CallTimeout() time.Duration { return o.MaxTimeout + o.MaxWait + callMargin }

// Endpoint returns the address of the MCP endpoint of a server: the address itself
// where it has a path, as behind a proxy, else its /mcp.
func Endpoint(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" && strings.Trim(u.Path, "/") == "" {
		return u.JoinPath("mcp").String()
	}
	return address
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (o Options) check() error {
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("URL %q is not http://host/path or https://host/path", o.URL)
	case !variable.MatchString(o.TokenEnv):
		return errors.New("the variable for the token has no name of letters, digits and _")
	}
	return nil
}

// Client is one known MCP client.
type Client struct {
	// Name selects the client on a command line, Title is for people.
	Name, Title string
	// Where says where the entry belongs.
	Where string
	// Format is json, toml or yaml.
	Format string
	// Limit is the longest call that the client waits for and cannot be told
	// otherwise, as users report it. Zero means none is known.
	Limit time.Duration

	// reference is how the client writes a value that it gets from elsewhere,
	// with %s for a variable's name. Empty means that it cannot.
	reference string
	// keepsToken is true for a client whose entries never hold the token.
	keepsToken bool
	// notes are for people: templates like entry, one per line.
	notes []string
	entry string
}

// Clients lists every known client, in the order in which people see it.
func Clients() []Client { return append([]Client(nil), clients...) }

// Entry writes the entry for the client of this name. It ends in a newline.
func Entry(client string, o Options) (string, error) {
	c, err := find(client)
	if err != nil {
		return "", err
	}
	return c.render(c.entry, o)
}

// Notes says, one sentence per line, where the entry of the client of this name
// belongs and what else is to be done. It never holds the token.
func Notes(client string, o Options) ([]string, error) {
	c, err := find(client)
	if err != nil {
		return nil, err
	}
	notes := []string{c.Title + ": " + c.Where + "."}
	for _, note := range c.notes {
		line, err := c.render(note, o)
		if err != nil {
			return nil, err
		}
		if line != "" {
			notes = append(notes, line)
		}
	}
	switch {
	case o.Token == "" && c.reference == "" && !c.keepsToken:
		notes = append(notes, "Replace "+Placeholder+" by the token.")
	case o.Token == "" && strings.Contains(c.reference, "%s"):
		notes = append(notes, "Set "+o.TokenEnv+" in the environment that the client starts in.")
	}
	if c.Limit > 0 && o.CallTimeout() > c.Limit {
		notes = append(notes, fmt.Sprintf("This client gives up after about %s, and a call can take up to %s here.", c.Limit, o.CallTimeout()))
	}
	return notes, nil
}

func find(name string) (Client, error) {
	var names []string
	for _, c := range clients {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return Client{}, fmt.Errorf("unknown client %q, known are %s", name, strings.Join(names, ", "))
}

// render executes one of the client's templates. In it q quotes a string as
// JSON does, which TOML and YAML read the same way.
func (c Client) render(text string, o Options) (string, error) {
	if err := o.check(); err != nil {
		return "", err
	}
	token := o.Token
	switch {
	case token == "" && c.reference == "":
		token = Placeholder
	case token == "":
		token = strings.ReplaceAll(c.reference, "%s", o.TokenEnv)
	}
	address, _ := url.Parse(o.URL) // checked above
	var out bytes.Buffer
	err := template.Must(template.New(c.Name).Funcs(template.FuncMap{"q": quote}).Parse(text)).Execute(&out, map[string]any{
		"Name":     ServerName,
		"URL":      o.URL,
		"Plain":    address.Scheme == "http",
		"HostPort": hostPort(address),
		"TokenEnv": o.TokenEnv,
		"Literal":  o.Token != "",
		"Token":    token,
		"Bearer":   "Bearer " + token,
		"Seconds":  int(o.CallTimeout() / time.Second),
		"Millis":   o.CallTimeout().Milliseconds(),
	})
	return out.String(), err
}

func quote(s string) (string, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(s)
	return strings.TrimSuffix(out.String(), "\n"), err
}

// hostPort writes the port also where the URL leaves it out.
func hostPort(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Host
	case u.Scheme == "http":
		return u.Host + ":80"
	default:
		return u.Host + ":443"
	}
}
