package httpserver

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// from returns a request that came in at a local address.
func from(local net.Addr, host, origin string) *http.Request {
	r := httptest.NewRequest("POST", "/mcp", nil)
	r.Host = host
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
}

var (
	outside  = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 8788}
	loopback = &net.TCPAddr{IP: net.IPv6loopback, Port: 8788}
	mapped   = &net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1"), Port: 8788}
)

// Row 5.
func TestHosts(t *testing.T) {
	for _, test := range []struct {
		local   net.Addr
		allowed []string
		host    string
		want    bool
	}{
		{outside, nil, "anything.example", true},
		{outside, nil, "10.0.0.5:8788", true},
		{outside, nil, "", true},
		{outside, []string{"sandbox.example"}, "sandbox.example:8788", true},
		{outside, []string{"sandbox.example"}, "sandbox.example.", true},
		{outside, []string{"sandbox.example"}, "evil.example", false},
		{outside, []string{"sandbox.example"}, "10.0.0.5:8788", false},
		{outside, []string{"sandbox.example"}, "localhost", false},
		{outside, []string{"sandbox.example"}, "", false},
		{outside, []string{"[2001:db8::1]"}, "[2001:db8::1]:8788", true},
		{outside, []string{"2001:db8::1"}, "[2001:DB8::1]:8788", true},
		{loopback, nil, "localhost:8788", true},
		{loopback, nil, "evil.example", false},
		{loopback, nil, "10.0.0.5", false},
		{loopback, []string{"sandbox.example"}, "sandbox.example", true},
		{loopback, []string{"sandbox.example"}, "[::1]:8788", true},
		{mapped, nil, "127.0.0.1", true},
		{mapped, nil, "[::ffff:127.0.0.1]", true},
		{mapped, nil, "evil.example", false},
	} {
		if got := newHosts(test.allowed).allow(from(test.local, test.host, "")); got != test.want {
			t.Errorf("Host %q at %v with %q allowed: %v, want %v", test.host, test.local, test.allowed, got, test.want)
		}
	}
}

// Row 4.
func TestOriginsFromOutside(t *testing.T) {
	for origin, want := range map[string]bool{
		"":                      true,
		"http://localhost:3000": false,
		"http://127.0.0.1":      false,
		// The same as the Host, which under DNS rebinding proves nothing.
		"http://10.0.0.5:8788": false,
		"https://app.example":  true,
	} {
		if got := newOrigins([]string{"https://app.example"}).allow(from(outside, "10.0.0.5:8788", origin)); got != want {
			t.Errorf("Origin %q: %v, want %v", origin, got, want)
		}
	}
	two := from(outside, "", "https://app.example")
	two.Header.Add("Origin", "https://evil.example")
	if newOrigins([]string{"https://app.example"}).allow(two) {
		t.Error("two Origin headers are allowed")
	}
}
