//go:build unix

package gateway_test

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
)

const socketText = `
listeners: [{name: raw, protocol: tcp, listen: "{listen}", upstream: echo{more}}]
upstreams: {echo: {endpoints: ["{echo}"]}}
`

// TestModeAndOwnerOfASocket are those of the configuration, and follow it at a reload.
func TestModeAndOwnerOfASocket(t *testing.T) {
	path, server := filepath.Join(t.TempDir(), "s"), echoServer(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	with := func(more string) *config.Config {
		return parse(t, socketText, "{listen}", "unix:"+path, "{echo}", server, "{more}", more)
	}
	want := func(mode os.FileMode, uid, gid uint32) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != mode || st.Uid != uid || st.Gid != gid {
			t.Errorf("the socket has mode %o and owner %d:%d, want %o and %d:%d", info.Mode().Perm(), st.Uid, st.Gid, mode, uid, gid)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	g := run(t, with(`, socket: {mode: "0600", owner: `+me.Username+`}`))
	want(0o600, uid, gid)
	other := gid
	if uid == 0 {
		other = 12345 // root may give it to anybody
	}
	for _, more := range []string{`, socket: {mode: 0666, owner: "{me}:{group}"}`, `, socket: {mode: "660", owner: "{me}:{group}"}`} {
		if err := g.Reload(with(strings.NewReplacer("{me}", me.Uid, "{group}", strconv.Itoa(int(other))).Replace(more))); err != nil {
			t.Fatal(err)
		}
	}
	want(0o660, uid, other)
	// A refused reload undoes its changes.
	refused := parse(t, strings.Replace(socketText, "}]", `}, {name: more, protocol: tcp, listen: "unix:/no/such/folder/s", upstream: echo}]`, 1),
		"{listen}", "unix:"+path, "{echo}", server, "{more}", `, socket: {mode: "0666", owner: "`+me.Uid+":"+me.Gid+`"}`)
	if err := g.Reload(refused); err == nil {
		t.Error("a listener in a folder that does not exist was taken")
	}
	want(0o660, uid, other)
	for _, id := range []string{"-5", "4294967295", "4294967296"} {
		if problems := gateway.Check(with(`, socket: {owner: "` + id + `"}`)); !strings.Contains(problems.String(), "no user") {
			t.Errorf("the owner %s is taken: %v", id, problems)
		}
	}
	if err := g.Reload(with(`, socket: {owner: nobody-of-that-name}`)); err == nil || !strings.Contains(err.Error(), `listener "raw": socket: owner: no user "nobody-of-that-name" here`) {
		t.Errorf("an owner that does not exist: %v", err)
	}
	if problems := gateway.Check(with(`, socket: {owner: "` + me.Uid + `:no-such-group"}`)); !strings.Contains(problems.String(), `no group "no-such-group" here`) {
		t.Errorf("check says of a group that does not exist:\n%s", problems)
	}
	want(0o660, uid, other)
}
