package haproxycfg

import (
	"strings"

	"github.com/headpond/headpond/internal/proxyconf"
)

// template returns a log-format text with the gateway's variables; false if one has no equal there.
func (p *place) template(text string, groups bool) (string, bool) {
	var b strings.Builder
	for text != "" {
		i := strings.IndexByte(text, '%')
		if i < 0 {
			i = len(text)
		}
		b.WriteString(proxyconf.Escape(text[:i], groups))
		if text = text[i:]; text == "" {
			break
		}
		switch {
		case strings.HasPrefix(text, "%%"):
			b.WriteString("%")
			text = text[2:]
		case strings.HasPrefix(text, "%["):
			inner, rest, ok := strings.Cut(text[2:], "]")
			value, known := p.sample(inner, groups)
			if !ok || !known {
				return "", false
			}
			b.WriteString(value)
			text = rest
		default:
			text = text[1:]
			if strings.HasPrefix(text, "{") { // flags
				_, rest, ok := strings.Cut(text, "}")
				if !ok {
					return "", false
				}
				text = rest
			}
			n := strings.IndexFunc(text, func(c rune) bool { return c < 'A' || c > 'z' || c > 'Z' && c < 'a' })
			if n < 0 {
				n = len(text)
			}
			value, known := map[string]string{"ci": "{client_ip}", "HM": "{method}", "HP": "{path}", "HPO": "{path}", "HU": "{uri}", "HPQ": "{uri}", "ID": "{request_id}"}[text[:n]]
			if !known {
				return "", false
			}
			b.WriteString(value)
			text = text[n:]
		}
	}
	return b.String(), true
}

// sample returns the variable for a sample expression.
func (p *place) sample(text string, groups bool) (string, bool) {
	name, converters, _ := strings.Cut(text, ",")
	if strings.HasPrefix(text, "str(") || strings.HasSuffix(strings.TrimRight(text, ")"), ",1") { // with a comma inside
		name, converters = text, ""
	}
	switch converters {
	case "", "lower":
	case "iif(https,http)":
		if name == "ssl_fc" {
			return "{scheme}", true
		}
		return "", false
	case "field(1,:)", "host_only", "lower,field(1,:)", "field(1,:),lower":
		converters = "host"
	default:
		return "", false
	}
	name, arg, _ := strings.Cut(strings.TrimSuffix(name, ")"), "(")
	switch strings.TrimPrefix(name, "req.") {
	case "src":
		return "{client_ip}", true
	case "method":
		return "{method}", true
	case "path":
		return "{path}", converters == ""
	case "url", "capture.req.uri", "pathq":
		return "{uri}", converters == ""
	case "base":
		return "{host}{path}", converters == ""
	case "unique-id":
		return "{request_id}", true
	case "ssl_fc":
		return map[bool]string{true: "1", false: "0"}[p.tls], true
	case "dst_port":
		return p.port, p.port != ""
	case "str":
		return proxyconf.Escape(strings.Trim(arg, "'\""), groups), true
	case "ssl_fc_sni":
		return "{host}", p.tls
	case "hdr", "fhdr", "shdr":
		arg, _, _ = strings.Cut(arg, ",")
		switch {
		case strings.EqualFold(arg, "host"):
			return "{host}", true
		case !headerName(arg) || converters != "":
			return "", false
		}
		return "{header." + arg + "}", true
	}
	return "", false
}

// headerName reports whether a text may be the name of a header in a rule.
func headerName(text string) bool {
	return text != "" && len(text) <= 200 && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	})
}
