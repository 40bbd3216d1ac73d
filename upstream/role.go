package upstream

import (
	"context"
	"fmt"
)

// Role is the part of an endpoint among servers that replicate the same data.
type Role int

const (
	// UnknownRole is the role of an endpoint that has not been asked, or does not answer. No Target but TargetAny
	// accepts it.
	UnknownRole Role = iota
	// Primary takes writes.
	Primary
	// ReadOnlyPrimary is a primary that takes no writes at present.
	ReadOnlyPrimary
	// Standby follows a primary, and takes no writes.
	Standby
)

var roleNames = [...]string{UnknownRole: "unknown", Primary: "primary", ReadOnlyPrimary: "read-only primary", Standby: "standby"}

// String returns "unknown", "primary", "read-only primary" or "standby".
func (r Role) String() string {
	if r < 0 || int(r) >= len(roleNames) {
		return fmt.Sprintf("role(%d)", int(r))
	}
	return roleNames[r]
}

// Target says which Roles the endpoints of an Upstream must have to get leases. The words are those of libpq's
// target_session_attrs.
type Target int

const (
	// TargetAny accepts every endpoint, and asks none for its role. The default.
	TargetAny Target = iota
	// TargetPrimary accepts Primary and ReadOnlyPrimary. If there are two, both get leases.
	TargetPrimary
	// TargetStandby accepts Standby.
	TargetStandby
	// TargetPreferStandby is TargetStandby as long as a standby is in, and otherwise TargetPrimary.
	TargetPreferStandby
	// TargetReadWrite accepts Primary.
	TargetReadWrite
	// TargetReadOnly accepts Standby and ReadOnlyPrimary.
	TargetReadOnly
)

var targetNames = [...]string{
	TargetAny: "any", TargetPrimary: "primary", TargetStandby: "standby", TargetPreferStandby: "prefer-standby",
	TargetReadWrite: "read-write", TargetReadOnly: "read-only",
}

func (t Target) valid() bool { return t >= 0 && int(t) < len(targetNames) }

// String returns the name that ParseTarget parses.
func (t Target) String() string {
	if !t.valid() {
		return fmt.Sprintf("target(%d)", int(t))
	}
	return targetNames[t]
}

// ParseTarget parses "any" (or the empty string), "primary", "standby", "prefer-standby", "read-write" and "read-only".
// The error wraps ErrConfig.
func ParseTarget(s string) (Target, error) {
	if s == "" {
		return TargetAny, nil
	}
	for t, name := range targetNames {
		if s == name {
			return Target(t), nil
		}
	}
	return TargetAny, fmt.Errorf("%w: target %q is not one of any, primary, standby, prefer-standby, read-write, read-only", ErrConfig, s)
}

// refused is the rank of a Role that a Target does not accept.
const refused = -1

// rank returns the preference of a Target for a Role: endpoints of rank 0 come before those of rank 1, whatever their
// priorities.
func (t Target) rank(r Role) int {
	accepts := false
	switch t {
	case TargetAny:
		return 0
	case TargetPrimary:
		accepts = r == Primary || r == ReadOnlyPrimary
	case TargetStandby:
		accepts = r == Standby
	case TargetReadWrite:
		accepts = r == Primary
	case TargetReadOnly:
		accepts = r == Standby || r == ReadOnlyPrimary
	case TargetPreferStandby:
		switch r {
		case Standby:
			return 0
		case Primary, ReadOnlyPrimary:
			return 1
		}
	}
	if accepts {
		return 0
	}
	return refused
}

// Wanted says in words what an endpoint must be, such as "a primary".
func (t Target) Wanted() string {
	switch t {
	case TargetPrimary:
		return "a primary"
	case TargetStandby:
		return "a standby"
	case TargetPreferStandby:
		return "a standby or a primary"
	case TargetReadWrite:
		return "a primary that takes writes"
	case TargetReadOnly:
		return "a standby or read-only"
	}
	return "usable"
}

// RoleAsker asks one endpoint for its Role. One goroutine calls its methods.
type RoleAsker interface {
	// Ask returns the endpoint's role. It may keep a connection for the next call; anew = it must use a new one, because
	// the endpoint's address may lead to another server by now. It must return when ctx ends. After an error that wraps
	// ErrTenant, the endpoint has answered without saying its role, and keeps the one that it had. After another error
	// its role is unknown, if the endpoint has not answered for some seconds or cannot be connected to.
	Ask(ctx context.Context, anew bool) (Role, error)
	// Close closes the connection that is kept. Ask may be called again.
	Close()
}
