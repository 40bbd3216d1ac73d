package httpproxy

import (
	"encoding/binary"
	"strconv"

	"github.com/headpond/headpond/httpwire"
)

// Frames of HTTP/2 (RFC 9113, sections 4 and 6).
const (
	frameHead = 9        // length (3), type, flags, stream (4)
	maxFrame  = 16 << 10 // of content; larger ones may be refused

	frameData         = 0
	frameHeaders      = 1
	framePriority     = 2
	frameReset        = 3
	frameSettings     = 4
	framePushPromise  = 5
	framePing         = 6
	frameGoAway       = 7
	frameWindow       = 8
	frameContinuation = 9

	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings (RFC 9113, section 6.5.2).
const (
	settingPush       = 2
	settingStreams    = 3
	settingWindow     = 4
	settingFrame      = 5
	settingHeaderList = 6
	settingConnect    = 8 // SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441, section 3)
)

// validSetting checks the rules that clients and servers share. We never send frames larger than the minimum that all
// accept.
func validSetting(id uint16, value uint32) error {
	switch {
	case id == settingFrame && (value < maxFrame || value >= 1<<24):
		return codeProtocol
	case id == settingWindow && value > maxWindow:
		return codeFlow
	case id == settingConnect && value > 1:
		return codeProtocol
	}
	return nil
}

// h2Code is the error code that ends a stream or a connection (RFC 9113, section 7).
type h2Code uint32

const (
	codeNone        h2Code = 0
	codeProtocol    h2Code = 1
	codeInternal    h2Code = 2
	codeFlow        h2Code = 3
	codeClosed      h2Code = 5
	codeSize        h2Code = 6
	codeRefused     h2Code = 7
	codeCancel      h2Code = 8
	codeCompression h2Code = 9
	codeCalm        h2Code = 11
)

// Error returns the number of the code.
func (c h2Code) Error() string { return "HTTP/2 error " + strconv.Itoa(int(c)) }

// appendFrame appends the header of a frame of n bytes.
func appendFrame(dst []byte, n int, kind, flags byte, stream uint32) []byte {
	dst = append(dst, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	return binary.BigEndian.AppendUint32(dst, stream)
}

func appendReset(dst []byte, stream uint32, code h2Code) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(dst, 4, frameReset, 0, stream), uint32(code))
}

func appendGoAway(dst []byte, last uint32, code h2Code) []byte {
	dst = binary.BigEndian.AppendUint32(appendFrame(dst, 8, frameGoAway, 0, 0), last)
	return binary.BigEndian.AppendUint32(dst, uint32(code))
}

func appendWindow(dst []byte, stream uint32, n int64) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(dst, 4, frameWindow, 0, stream), uint32(n))
}

func appendSetting(dst []byte, id uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(dst, id), value)
}

// appendBlock appends a field block, in as many frames as needed.
func appendBlock(dst, block []byte, stream uint32, last bool) []byte {
	kind, flags := byte(frameHeaders), byte(0)
	if last {
		flags = flagEndStream
	}
	for {
		n := min(len(block), maxFrame)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		dst = append(appendFrame(dst, n, kind, flags, stream), block[:n]...)
		if block = block[n:]; flags&flagEndHeaders != 0 {
			return dst
		}
		kind, flags = frameContinuation, 0
	}
}

// emptyTable sets the size of the dynamic table to 0 (RFC 7541, section 6.3), so that blocks can be made in any order. It
// begins the first block of a connection.
const emptyTable = 0x20

// appendStatus appends the status, a response's first field.
func appendStatus(dst []byte, status int) []byte {
	switch status { // those in the static table (RFC 7541, appendix A)
	case 200:
		return append(dst, indexed|8)
	case 204:
		return append(dst, indexed|9)
	case 206:
		return append(dst, indexed|10)
	case 304:
		return append(dst, indexed|11)
	case 400:
		return append(dst, indexed|12)
	case 404:
		return append(dst, indexed|13)
	case 500:
		return append(dst, indexed|14)
	}
	return strconv.AppendInt(append(dst, 8, 3), int64(status), 10) // 8 is the name's index
}

// appendCoded appends a field without indexing (RFC 7541, section 6.2.2), its name in lower case.
func appendCoded(dst []byte, f *httpwire.Field) []byte {
	dst = appendCodedName(dst, view(f.Name))
	return append(appendInteger(dst, len(f.Value)), f.Value...)
}

// appendCodedName appends the type and name of such a field.
func appendCodedName(dst []byte, name string) []byte {
	var buf [64]byte
	lower := append(buf[:0], name...)
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	switch i := staticName(view(lower)); {
	case i == 0:
		dst = append(dst, 0)
		return append(appendInteger(dst, len(lower)), lower...)
	case i < 15:
		return append(dst, i)
	default:
		return append(dst, 15, i-15)
	}
}

// staticName is the index of a name (RFC 7541, appendix A); 0 = it has none, or is rare.
func staticName(name string) byte {
	switch name {
	case ":authority":
		return 1
	case ":method":
		return 2
	case ":path":
		return 4
	case "accept-encoding":
		return 16
	case "accept-language":
		return 17
	case "accept-ranges":
		return 18
	case "accept":
		return 19
	case "access-control-allow-origin":
		return 20
	case "age":
		return 21
	case "allow":
		return 22
	case "authorization":
		return 23
	case "cache-control":
		return 24
	}
	if name < "content" || name > "via" {
		return 0
	}
	return laterStaticName(name)
}

// laterStaticName is staticName for the remainder of the alphabet.
func laterStaticName(name string) byte {
	switch name {
	case "content-disposition":
		return 25
	case "content-encoding":
		return 26
	case "content-language":
		return 27
	case "content-length":
		return 28
	case "content-location":
		return 29
	case "content-range":
		return 30
	case "content-type":
		return 31
	case "cookie":
		return 32
	case "date":
		return 33
	case "etag":
		return 34
	case "expect":
		return 35
	case "expires":
		return 36
	case "if-modified-since":
		return 40
	case "if-none-match":
		return 41
	case "last-modified":
		return 44
	case "link":
		return 45
	case "location":
		return 46
	case "range":
		return 50
	case "referer":
		return 51
	case "retry-after":
		return 53
	case "server":
		return 54
	case "set-cookie":
		return 55
	case "strict-transport-security":
		return 56
	case "user-agent":
		return 58
	case "vary":
		return 59
	case "via":
		return 60
	}
	return 0
}

// mostShort is the least length that needs more than one byte.
const mostShort = 1<<7 - 1

// appendInteger appends the length of a string that is not compressed (RFC 7541, section 5.1).
func appendInteger(dst []byte, n int) []byte {
	if n < mostShort {
		return append(dst, byte(n))
	}
	dst = append(dst, mostShort)
	for n -= mostShort; n >= 128; n >>= 7 {
		dst = append(dst, byte(n)|128)
	}
	return append(dst, byte(n))
}

// Pseudo-header fields of a request (RFC 7541, appendix A).
const (
	indexed     = 0x80
	methodGET   = 2
	methodPOST  = 3
	schemeHTTP  = 6
	schemeHTTPS = 7
)
