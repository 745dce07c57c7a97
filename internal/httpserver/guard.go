package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// hosts decides on Host headers, against DNS rebinding: a page of a name that
// its owner lets point here speaks to us under that name.
type hosts []string

func newHosts(list []string) hosts {
	var h hosts
	for _, host := range list {
		h = append(h, strings.ToLower(host))
	}
	return h
}

func (h hosts) allow(r *http.Request) bool {
	host := strings.ToLower(r.Host)
	name := hostname(host)
	if slices.Contains(h, host) || slices.Contains(h, name) || slices.Contains(h, "["+name+"]") {
		return true
	}
	if isLocal(r) {
		return isLoopback(name)
	}
	return len(h) == 0
}

// origins decides on Origin headers, which browsers alone send.
type origins []string

func newOrigins(list []string) origins {
	var o origins
	for _, origin := range list {
		o = append(o, strings.ToLower(strings.TrimSuffix(origin, "/")))
	}
	return o
}

func (o origins) allow(r *http.Request) bool {
	sent := r.Header.Values("Origin")
	if len(sent) == 0 {
		return true
	}
	origin := strings.ToLower(sent[0])
	if len(sent) > 1 {
		return false
	}
	if slices.Contains(o, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && isLocal(r) && (origin == "http://"+u.Host || origin == "https://"+u.Host) && isLoopback(hostname(u.Host))
}

// answerCORS lets the pages of an allowed origin read the answer, and answers
// the question that their browser asks beforehand. It returns true if it did.
func (o origins) answerCORS(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, WWW-Authenticate")
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept, Mcp-Protocol-Version, Mcp-Session-Id, Mcp-Method, Mcp-Name, Last-Event-ID, Traceparent")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// hostname takes the port, the brackets and the final dot off a Host.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}

// isLoopback reports whether a name can mean only this machine: RFC 6761 keeps
// localhost out of the DNS.
func isLoopback(name string) bool {
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Unmap().IsLoopback()
}

// isLocal reports whether a request came over the loopback interface.
func isLocal(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}
