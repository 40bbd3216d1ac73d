package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/headpond/headpond/gateway"
)

// An upgrade: the process starts its program again, which may be a newer one by now, with the same arguments. The new
// process inherits the listening sockets and tells through a pipe when it serves them. The old one then drains.

// socketsVariable names the addresses of inherited sockets and links (gateway.Socket.Listen), one a line, in the order of their descriptors, which begin
// after that of the pipe.
const socketsVariable = "HEADPOND_SOCKETS"

// firstInherited is the descriptor of the pipe.
const firstInherited = 3

// upgradePatience bounds the start of the new process.
const upgradePatience = time.Minute

// leaveGrace is how long clients that have just connected to the old process may take for what they connected for, before the
// drain disconnects those that are idle. The new process has the others.
const leaveGrace = time.Second

// predecessor is the process that this one takes over from.
type predecessor struct {
	sockets []gateway.Socket // not nil
	pipe    *os.File
}

// findPredecessor returns nil if this process takes over from none.
func findPredecessor() *predecessor {
	value, ok := os.LookupEnv(socketsVariable)
	if !ok {
		return nil
	}
	_ = os.Unsetenv(socketsVariable)
	closeOnExec(firstInherited)
	p := &predecessor{sockets: []gateway.Socket{}, pipe: os.NewFile(firstInherited, "upgrade")}
	for i, listen := range strings.FieldsFunc(value, func(r rune) bool { return r == '\n' }) {
		closeOnExec(firstInherited + 1 + i)
		p.sockets = append(p.sockets, gateway.Socket{Listen: listen, File: os.NewFile(uintptr(firstInherited+1+i), listen)})
	}
	return p
}

// serving tells the predecessor that this process serves.
func (p *predecessor) serving() {
	if p != nil {
		_, _ = p.pipe.WriteString(served) // best effort: the predecessor may have ended
		_ = p.pipe.Close()
	}
}

// served is what the pipe has from a process that serves.
const served = "served"

// upgradeOn starts a successor for each signal, from ready until ctx ends or a successor serves; then it calls drain.
func upgradeOn(ctx context.Context, signals <-chan os.Signal, gw *gateway.Gateway, notify *notifier, drain func(), ready <-chan struct{}) {
	select {
	case <-ready:
	case <-ctx.Done():
	}
	log := gw.Logger()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		log.Info("upgrading: starting the program again", "pid", os.Getpid())
		pid, err := succeed(ctx, gw)
		if err != nil {
			log.Error("upgrade failed", "pid", os.Getpid(), "error", err)
			notify.upgradeFailed(err)
			continue
		}
		log.Info("upgraded: another process serves, this one drains", "pid", os.Getpid(), "successor", pid)
		notify.handOver(pid)
		select {
		case <-time.After(leaveGrace):
		case <-ctx.Done():
		}
		drain()
		return
	}
}

// succeed starts a successor, and returns its process ID when it serves and gw has stopped accepting. If that fails or ctx
// ends first, the successor is killed.
func succeed(ctx context.Context, gw *gateway.Gateway) (pid int, err error) {
	if err := mayUpgrade(os.Getpid()); err != nil {
		return 0, err
	}
	program, err := exec.LookPath(os.Args[0]) // not os.Executable: a symbolic link may lead to the newer program
	if err != nil {
		return 0, err
	}
	sockets, err := gw.Sockets()
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, s := range sockets {
			_ = s.File.Close()
		}
	}()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command(program, os.Args[1:]...) //nolint:gosec // as this process was started
	cmd.Args[0], cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Args[0], os.Stdout, os.Stderr, []*os.File{w}
	listens := make([]string, len(sockets))
	for i, s := range sockets {
		listens[i] = s.Listen
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.File)
	}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ofThisProcess), socketsVariable+"="+strings.Join(listens, "\n"))
	reloads := gw.Snapshot().Reloads.Applied
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return 0, err
	}
	if err = waitServed(ctx, r); err == nil {
		err = gw.Leave() // fails if a drain has begun meanwhile
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may run still if it has closed the pipe only
		return 0, errors.Join(err, cmd.Wait())
	}
	if gw.Snapshot().Reloads.Applied != reloads {
		_ = cmd.Process.Signal(syscall.SIGHUP) // it may have read the file before that; an error means that it has ended
	}
	go reportEnd(cmd, gw.Logger())
	return cmd.Process.Pid, nil
}

// mayUpgrade returns an error if the system would end a process together with its successor.
func mayUpgrade(pid int) error {
	if pid == 1 {
		return errFirstProcess
	}
	return nil
}

// reportEnd is a goroutine that logs the end of a successor for as long as this process runs: the parent is the only one that
// the system tells.
func reportEnd(cmd *exec.Cmd, log *slog.Logger) {
	err := cmd.Wait()
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelError
	}
	log.Log(context.Background(), level, "the successor has ended", "pid", os.Getpid(), "successor", cmd.Process.Pid, "state", cmd.ProcessState.String())
}

// ofThisProcess selects a variable of the environment that a successor must not get.
func ofThisProcess(variable string) bool {
	return strings.HasPrefix(variable, "WATCHDOG_PID=") || strings.HasPrefix(variable, socketsVariable+"=")
}

// waitServed waits until a successor serves.
func waitServed(ctx context.Context, pipe *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, upgradePatience, fmt.Errorf("the new process does not serve within %v", upgradePatience))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = pipe.SetReadDeadline(time.Unix(1, 0)) })()
	text, err := io.ReadAll(pipe)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case string(text) != served:
		return errEnded
	}
	return nil
}

var (
	errEnded        = errors.New("the new process ended before it served; its output says why")
	errFirstProcess = errors.New("this is process 1 of a container, which ends with it, also the new process: start another container instead")
)
