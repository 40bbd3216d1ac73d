package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
)

// account is the operating system user the server runs as.
type account struct {
	uid, gid int
	drop     bool // this process is root and must drop to uid
}

// serverAccount returns the current user, or an unprivileged one if that is root.
func serverAccount() (account, error) {
	if os.Getuid() != 0 {
		return account{uid: os.Getuid(), gid: os.Getgid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil && uid != 0 {
			return account{uid: uid, gid: gid, drop: true}, nil
		}
	}
	return account{}, fmt.Errorf("this test runs as root, PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody")
}

// mkdir makes a new private directory owned by the account.
func (a account) mkdir(prefix string) (string, error) {
	dir, err := os.MkdirTemp(tempDir(), prefix)
	if err != nil {
		return "", err
	}
	return dir, a.chown(dir)
}

// chown gives a file to the account.
func (a account) chown(path string) error {
	if !a.drop {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// command returns a command that will run as the account.
func (a account) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	a.apply(cmd)
	return cmd
}
