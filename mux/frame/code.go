package frame

import "fmt"

// Code says why a channel or a session ended.
type Code uint32

// The codes of the protocol. Those from CodeApplication on are the application's.
const (
	CodeNone        Code = 0 // nothing wrong
	CodeProtocol    Code = 1 // the other side broke the protocol
	CodeFlow        Code = 2 // it sent more than it had credit for
	CodeRefused     Code = 3 // the channel was not taken and nothing of it was used: safe to retry
	CodeCanceled    Code = 4 // no longer wanted
	CodeTooLarge    Code = 5 // a message over the receiver's bound
	CodeDenied      Code = 6 // authentication or authorization failed
	CodeVersion     Code = 7 // no common version or feature
	CodeFlood       Code = 8 // too many frames that need an answer
	CodeOver        Code = 9 // the session is over, or not known here
	CodeApplication Code = 0x100
)

// String is the code's name in the specification.
func (c Code) String() string {
	switch c {
	case CodeNone:
		return "none"
	case CodeProtocol:
		return "protocol"
	case CodeFlow:
		return "flow"
	case CodeRefused:
		return "refused"
	case CodeCanceled:
		return "canceled"
	case CodeTooLarge:
		return "too large"
	case CodeDenied:
		return "denied"
	case CodeVersion:
		return "version"
	case CodeFlood:
		return "flood"
	case CodeOver:
		return "over"
	}
	return fmt.Sprintf("code %d", uint32(c))
}
