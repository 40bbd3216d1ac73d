package route

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
)

// notModified adds an entity tag to the response. If the client already has it, it answers 304.
func (x *exchange) notModified(h http.Header) bool {
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		return false
	}
	tag := h.Get("ETag")
	if tag == "" {
		sum := sha256.Sum256(x.out)
		tag = `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
		h["Etag"] = []string{tag}
	}
	if !matches(x.r.Header["If-None-Match"], tag) {
		return false
	}
	x.write(http.StatusNotModified)
	return true
}

// matches compares a tag with those of If-None-Match, weakly (RFC 9110, section 13.1.2).
func matches(lines []string, tag string) bool {
	tag = strings.TrimPrefix(tag, "W/")
	for _, line := range lines {
		if strings.TrimSpace(line) == "*" {
			return true
		}
		for line != "" { // tags are in quotes and may contain commas
			_, rest, _ := strings.Cut(line, `"`)
			item, after, ok := strings.Cut(rest, `"`)
			if ok && `"`+item+`"` == tag {
				return true
			}
			line = after
		}
	}
	return false
}
