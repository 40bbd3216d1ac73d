package httpproxy

import (
	"net/http"
	"strings"

	"github.com/headpond/headpond/fiber"
)

// challengePath begins the paths at which certificate authorities check that a name belongs to this gateway (RFC 8555,
// section 8.3).
const challengePath = "/.well-known/acme-challenge/"

// isChallenge reports whether the request asks for a key authorization. If so, it begins the exchange, with the key
// authorization as the answer. raw is the request's target. Without mayWait it does not call KeyAuthorization: done is
// false if it would have to, and the caller calls again.
func (s *session) isChallenge(t *table, path string, raw []byte, mayWait bool) (known, done bool) {
	if t.keyAuthorization == nil {
		return false, true
	}
	token, ok := strings.CutPrefix(path, challengePath)
	if method := view(s.req.Method); !ok || method != http.MethodGet && method != http.MethodHead {
		return false, true
	}
	if !mayWait {
		return false, false
	}
	token, text := strings.Clone(token), ""
	fiber.Block(func() { text = t.keyAuthorization(token) })
	if text == "" {
		return false, true
	}
	r := Route{Path: challengePath, Respond: Respond{Status: http.StatusOK, Body: text, ContentType: "application/octet-stream"}}
	tg := &target{label: r.label(), path: r.Path, route: r, traffic: s.p.traffic.Cell(r.label(), "")}
	tg.change(r)
	s.ex.finding = finding{target: tg}
	s.begin(path, raw)
	return true, true
}
