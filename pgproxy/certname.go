package pgproxy

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// nameSET is a part of a distinguished name: nearly always one attribute. Package asn1 knows sets by this ending.
type nameSET []nameAttribute

type nameAttribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// nameIn returns the user's name in a certificate: its common name, the first if there are several, or its distinguished name
// as OpenSSL writes it (RFC 2253). Package pkix takes the last common name, and knows fewer attributes.
func nameIn(cert *x509.Certificate, dn bool) (name string, err error) {
	var parts []nameSET
	if rest, err := asn1.Unmarshal(cert.RawSubject, &parts); err != nil || len(rest) > 0 {
		return "", fmt.Errorf("the subject of the client certificate cannot be read: %w", err)
	}
	if dn {
		name = distinguishedName(parts)
	} else {
		name = commonName(parts)
	}
	switch {
	case name == "":
		return "", errors.New("the client certificate has no user name")
	case strings.Contains(name, "\x00"):
		return "", errors.New("the name in the client certificate has a NUL character in it")
	}
	return name, nil
}

func commonName(parts []nameSET) string {
	for _, part := range parts {
		for _, a := range part {
			if attributeNames[a.Type.String()] == "CN" {
				return string(a.Value.Bytes)
			}
		}
	}
	return ""
}

// attributeNames are OpenSSL's short names.
var attributeNames = map[string]string{
	"2.5.4.3": "CN", "2.5.4.4": "SN", "2.5.4.5": "serialNumber", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "street",
	"2.5.4.10": "O", "2.5.4.11": "OU", "2.5.4.12": "title", "2.5.4.13": "description", "2.5.4.17": "postalCode", "2.5.4.41": "name",
	"2.5.4.42": "GN", "2.5.4.43": "initials", "2.5.4.46": "dnQualifier", "2.5.4.65": "pseudonym", "2.5.4.97": "organizationIdentifier",
	"0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC", "1.2.840.113549.1.9.1": "emailAddress",
}

// distinguishedName writes a name from its last part to its first.
func distinguishedName(parts []nameSET) string {
	var out strings.Builder
	for _, part := range slices.Backward(parts) {
		separator := ","
		for _, a := range slices.Backward(part) {
			if out.Len() > 0 {
				out.WriteString(separator)
			}
			separator = "+"
			a.write(&out)
		}
	}
	return out.String()
}

func (a *nameAttribute) write(out *strings.Builder) {
	kind := a.Type.String()
	name, known := attributeNames[kind]
	text, isText := textOf(a.Value)
	if !known {
		name = kind
	}
	out.WriteString(name)
	if !known || !isText {
		fmt.Fprintf(out, "=#%X", a.Value.FullBytes)
		return
	}
	out.WriteByte('=')
	for i := range len(text) {
		switch c := text[i]; {
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(out, `\%02X`, c)
		case strings.IndexByte(`,+"\<>;`, c) >= 0, c == ' ' && (i == 0 || i == len(text)-1), c == '#' && i == 0:
			out.WriteByte('\\')
			out.WriteByte(c)
		default:
			out.WriteByte(c)
		}
	}
}

// textOf returns a value in UTF-8, if it is text.
func textOf(v asn1.RawValue) (text string, ok bool) {
	if v.Class != asn1.ClassUniversal {
		return "", false
	}
	switch v.Tag {
	case asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagIA5String, asn1.TagNumericString:
		return string(v.Bytes), true
	case asn1.TagT61String: // taken for Latin-1
		var latin []rune
		for _, b := range v.Bytes {
			latin = append(latin, rune(b))
		}
		return string(latin), true
	case asn1.TagBMPString:
		var units []uint16
		for i := 0; i+1 < len(v.Bytes); i += 2 {
			units = append(units, uint16(v.Bytes[i])<<8|uint16(v.Bytes[i+1]))
		}
		return string(utf16.Decode(units)), len(v.Bytes)%2 == 0
	}
	return "", false
}
