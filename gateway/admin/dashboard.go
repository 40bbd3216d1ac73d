package admin

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// The page is kept in three files and put together once, so that its policy can name script and style by their hashes.
var (
	//go:embed dashboard.html
	pageHTML string
	//go:embed dashboard.css
	pageCSS string
	//go:embed dashboard.js
	pageJS string

	page = strings.NewReplacer("{{css}}", pageCSS, "{{js}}", pageJS).Replace(pageHTML)

	pagePolicy = strings.Join([]string{
		"default-src 'none'",
		"script-src '" + sourceHash(pageJS) + "'",
		"style-src '" + sourceHash(pageCSS) + "'",
		"connect-src 'self'",
		"img-src data:",
		"base-uri 'none'",
		"form-action 'none'",
		"frame-ancestors 'none'",
		"require-trusted-types-for 'script'",
	}, "; ")
)

// sourceHash is a CSP hash source for the exact content of an element.
func sourceHash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func (h *handler) dashboard(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", pagePolicy)
	w.Header().Set("X-Frame-Options", "DENY")
	_, _ = w.Write([]byte(page))
}
