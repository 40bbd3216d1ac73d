package gateway

import (
	"fmt"
	"math"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/headpond/headpond/gateway/config"
)

// permission is the mode and owner of a unix socket, made by permissionOf.
type permission struct {
	mode     os.FileMode // 0: by the umask
	uid, gid int         // -1: the gateway's own
}

// permissionOf looks up a listener's mode and owner on this system.
func permissionOf(l *config.Listener) (permission, error) {
	p := permission{uid: -1, gid: -1}
	if l.Socket == nil {
		return p, nil
	}
	if l.Socket.Mode != "" {
		mode, err := strconv.ParseUint(l.Socket.Mode, 8, 32)
		if err != nil {
			return p, fmt.Errorf("mode: %w", err)
		}
		p.mode = os.FileMode(mode)
	}
	if l.Socket.Owner == "" {
		return p, nil
	}
	name, group, withGroup := strings.Cut(l.Socket.Owner, ":")
	owner, err := user.Lookup(name)
	if err != nil {
		owner = &user.User{Uid: name}
	}
	if p.uid, err = parseID(owner.Uid); err != nil {
		return p, fmt.Errorf("socket: owner: no user %q here", name)
	}
	if withGroup {
		id := group
		if g, err := user.LookupGroup(group); err == nil {
			id = g.Gid
		}
		if p.gid, err = parseID(id); err != nil {
			return p, fmt.Errorf("socket: owner: no group %q here", group)
		}
	}
	return p, nil
}

// parseID reads the number of a user or a group. The system uses the largest number for none.
func parseID(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err == nil && n == math.MaxUint32 {
		err = strconv.ErrRange
	}
	return int(n), err
}

// permit applies perm to the socket at an address, until p is aborted: a refused configuration changes no access.
func (p *plan) permit(perm permission, address string) error {
	if path, unix := strings.CutPrefix(address, "unix:"); unix {
		if info, err := os.Lstat(path); err == nil {
			before := permission{mode: info.Mode().Perm(), uid: -1, gid: -1}
			before.uid, before.gid = ownerOf(info)
			p.Abort = append(p.Abort, func() { _ = before.apply(address) }) // the error means that the socket is gone
		}
	}
	return perm.apply(address)
}

// apply sets the owner and mode of the socket at an address. A mode that is no longer in the
// configuration remains until a restart.
func (p permission) apply(address string) error {
	path, unix := strings.CutPrefix(address, "unix:")
	if !unix {
		return nil
	}
	if p.uid >= 0 || p.gid >= 0 {
		if err := os.Lchown(path, p.uid, p.gid); err != nil {
			return fmt.Errorf("socket: owner: %w; a gateway that is not root can give a socket to its own groups only", err)
		}
	}
	if p.mode != 0 {
		if err := os.Chmod(path, p.mode); err != nil {
			return fmt.Errorf("socket: mode: %w", err)
		}
	}
	return nil
}
