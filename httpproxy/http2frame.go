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
)

// h2Code is why a stream or a connection ends (RFC 9113, section 7).
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

// Error says which rule of HTTP/2 the client has broken.
func (c h2Code) Error() string { return "HTTP/2 error " + strconv.Itoa(int(c)) }

// appendFrame appends the head of a frame of n bytes.
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

// appendBlock appends a block of fields, in as many frames as needed.
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

// emptyTable says that no field refers to another: blocks can then be made without regard to their order (RFC 7541,
// section 6.3). It begins the first block of a connection.
const emptyTable = 0x20

// staticStatus are the statuses with their own index (RFC 7541, appendix A).
var staticStatus = map[int]byte{200: 8, 204: 9, 206: 10, 304: 11, 400: 12, 404: 13, 500: 14}

// staticNames are indices of the names that responses use.
var staticNames = map[string]byte{
	"accept-ranges": 18, "age": 21, "allow": 22, "access-control-allow-origin": 20, "cache-control": 24,
	"content-disposition": 25, "content-encoding": 26, "content-language": 27, "content-length": 28, "content-location": 29,
	"content-range": 30, "content-type": 31, "date": 33, "etag": 34, "expires": 36, "last-modified": 44, "link": 45,
	"location": 46, "retry-after": 53, "server": 54, "set-cookie": 55, "strict-transport-security": 56, "vary": 59, "via": 60,
	"www-authenticate": 61,
}

// appendStatus appends the field that a response begins with.
func appendStatus(dst []byte, status int) []byte {
	if i := staticStatus[status]; i != 0 {
		return append(dst, 0x80|i)
	}
	return strconv.AppendInt(append(dst, 8, 3), int64(status), 10) // 8 is the name's index
}

// appendCoded appends a field that nothing remembers (RFC 7541, section 6.2.2), its name in lower case.
func appendCoded(dst []byte, f *httpwire.Field) []byte {
	var lower [64]byte
	name := append(lower[:0], f.Name...)
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			name[i] = c + 'a' - 'A'
		}
	}
	if i := staticNames[string(name)]; i == 0 {
		dst = append(dst, 0)
		dst = append(appendInteger(dst, len(name)), name...)
	} else if i < 15 {
		dst = append(dst, i)
	} else {
		dst = append(dst, 15, i-15)
	}
	return append(appendInteger(dst, len(f.Value)), f.Value...)
}

// appendInteger appends the length of a string that is not compressed (RFC 7541, section 5.1).
func appendInteger(dst []byte, n int) []byte {
	const most = 1<<7 - 1
	if n < most {
		return append(dst, byte(n))
	}
	dst = append(dst, most)
	for n -= most; n >= 128; n >>= 7 {
		dst = append(dst, byte(n)|128)
	}
	return append(dst, byte(n))
}
