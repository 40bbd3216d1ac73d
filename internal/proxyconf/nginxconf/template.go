package nginxconf

import (
	"strings"

	"github.com/headpond/headpond/internal/proxyconf"
)

// variables are those of nginx with an equal.
var variables = map[string]string{
	"host": "{host}", "http_host": "{host}", "request_uri": "{uri}", "uri": "{path}", "document_uri": "{path}", "scheme": "{scheme}", "remote_addr": "{client_ip}", "realip_remote_addr": "{client_ip}",
	"request_method": "{method}", "request_id": "{request_id}",
}

// template returns a text with the gateway's variables; false if one has no equal.
func (v *view) template(text string, groups bool) (string, bool) {
	return v.expand(text, groups, false)
}

// groups is template, where $1 is a group of an expression.
func (v *view) groups(text string) (string, bool) { return v.expand(text, true, true) }

func (v *view) expand(text string, dollars, groups bool) (string, bool) {
	var b strings.Builder
	for text != "" {
		i := strings.IndexByte(text, '$')
		if i < 0 {
			i = len(text)
		}
		b.WriteString(proxyconf.Escape(text[:i], dollars))
		if text = text[i:]; text == "" {
			break
		}
		text = text[1:]
		var name string
		if strings.HasPrefix(text, "{") {
			inner, rest, ok := strings.Cut(text[1:], "}")
			if !ok {
				return "", false
			}
			name, text = inner, rest
		} else {
			n := strings.IndexFunc(text, func(c rune) bool {
				return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_'
			})
			if n < 0 {
				n = len(text)
			}
			if n > 0 && text[0] >= '0' && text[0] <= '9' {
				n = 1
			}
			name, text = text[:n], text[n:]
		}
		value, ok := v.variable(name, groups)
		switch {
		case name == "is_args" && (strings.HasPrefix(text, "$args") || strings.HasPrefix(text, "$query_string")):
			value, ok = "{query}", true
			text = strings.TrimPrefix(strings.TrimPrefix(text, "$args"), "$query_string")
		case (name == "args" || name == "query_string") && strings.HasSuffix(b.String(), "?"):
			shorter := strings.TrimSuffix(b.String(), "?")
			b.Reset()
			b.WriteString(shorter)
			value, ok = "{query}", true
		}
		if !ok {
			return "", false
		}
		b.WriteString(value)
	}
	return b.String(), true
}

// variable returns the gateway's text for a variable.
func (v *view) variable(name string, groups bool) (string, bool) {
	if value, ok := variables[name]; ok {
		return value, name != "remote_addr" || !v.behind
	}
	switch header, isHeader := strings.CutPrefix(name, "http_"); {
	case isHeader && header != "" && !strings.ContainsAny(header, "{}"):
		return "{header." + strings.ReplaceAll(header, "_", "-") + "}", true
	case name == "server_name":
		return v.name, v.name != ""
	case name == "server_port":
		return v.port, v.port != ""
	case groups && len(name) == 1 && name[0] >= '0' && name[0] <= '9':
		return "$" + name, true
	}
	return "", false
}
