package httpserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/http"
	"strings"

	"golang.org/x/time/rate"
)

// Token is a bearer token that is accepted. More than one lets an operator
// change it without a gap.
type Token struct {
	// Name says in logs whose token it is. Empty means "default".
	Name string
	// Secret is the token itself, at least MinTokenLength characters.
	Secret string
}

// MinTokenLength is the length below which a token can be guessed.
const MinTokenLength = 16

// String keeps the secret out of logs.
func (t Token) String() string { return t.Name }

// GoString keeps the secret out of logs.
func (t Token) GoString() string { return t.Name }

type tokens struct {
	known  []hashedToken
	failed limiter
}

type hashedToken struct {
	name string
	sum  [sha256.Size]byte
}

func newTokens(list []Token) (tokens, error) {
	if len(list) == 0 {
		return tokens{}, errors.New("no bearer token")
	}
	t := tokens{failed: newLimiter()}
	for _, token := range list {
		if token.Name == "" {
			token.Name = "default"
		}
		if len(token.Secret) < MinTokenLength {
			return tokens{}, fmt.Errorf("bearer token %q is shorter than %d characters", token.Name, MinTokenLength)
		}
		t.known = append(t.known, hashedToken{token.Name, sha256.Sum256([]byte(token.Secret))})
	}
	return t, nil
}

// find returns the name of the token that was sent. How long it takes tells
// nothing of the tokens: hashes of equal length are compared, and all of them.
func (t *tokens) find(sent string) (name string, ok bool) {
	sum := sha256.Sum256([]byte(sent))
	for _, known := range t.known {
		if subtle.ConstantTimeCompare(sum[:], known.sum[:]) == 1 {
			name, ok = known.name, true
		}
	}
	return name, ok
}

// authenticate notes the name of the token of r in w, or answers r and returns
// false.
func (s *Server) authenticate(w *response, r *http.Request) bool {
	sent := r.Header.Values("Authorization")
	challenge := `Bearer realm="code-execution-sandbox"`
	why := `no bearer token; send the header "Authorization: Bearer TOKEN" with the token the server was started with`
	if len(sent) == 1 {
		scheme, secret, _ := strings.Cut(sent[0], " ")
		if secret = strings.TrimSpace(secret); strings.EqualFold(scheme, "Bearer") && secret != "" {
			name, ok := s.tokens.find(secret)
			if ok {
				w.principal = name
				return true
			}
			challenge += `, error="invalid_token"`
			why = `wrong bearer token; the header "Authorization: Bearer TOKEN" must hold the token the server was started with`
			if strings.ContainsAny(secret, " \t") {
				why += "; these were several, of which a client sends one"
			}
		}
	}
	s.refusals.WithLabelValues("token").Inc()
	w.Header().Set("WWW-Authenticate", challenge)
	if !s.tokens.failed.allow(r.RemoteAddr) {
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusTooManyRequests, "too_many_requests", why)
		return false
	}
	s.opts.Logger.WarnContext(r.Context(), "http request without a valid token", "remote", r.RemoteAddr, "method", r.Method, "path", r.URL.Path)
	fail(w, http.StatusUnauthorized, "unauthorized", why)
	return false
}

// limiter bounds what wrong tokens cost: log lines, and answers that invite the
// next try. It never stands in the way of a right token, whose length guards it
// against guessing: behind a proxy all clients share an address, and one that
// is set up wrong must not lock out the others.
type limiter struct {
	seed    maphash.Seed
	buckets []*rate.Limiter // by hash of the address: memory is bounded, and a collision costs little
}

func newLimiter() limiter {
	l := limiter{seed: maphash.MakeSeed(), buckets: make([]*rate.Limiter, 256)}
	for i := range l.buckets {
		l.buckets[i] = rate.NewLimiter(1, 20) // per second, and at once
	}
	return l
}

func (l limiter) allow(remoteAddr string) bool {
	host, _, err := net.SplitHostPort(remoteAddr)
	if err != nil {
		host = remoteAddr
	}
	return l.buckets[maphash.String(l.seed, host)%uint64(len(l.buckets))].Allow()
}
