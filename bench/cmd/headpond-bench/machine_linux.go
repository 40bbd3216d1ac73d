package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/headpond/headpond/bench/internal/result"
)

// machine describes this machine.
func machine() result.Machine {
	m := result.Machine{Cores: runtime.NumCPU(), Kernel: firstLine("/proc/sys/kernel/osrelease"), TCP: firstLine("/proc/sys/net/ipv4/tcp_congestion_control")}
	m.Shares = "threads"
	if firstLine("/proc/sys/kernel/sched_autogroup_enabled") == "1" {
		m.Shares = "sessions"
	}
	m.CPU = value("/proc/cpuinfo", "model name", ":")
	m.OS = strings.Trim(value("/etc/os-release", "PRETTY_NAME", "="), `"`)
	_, _ = fmt.Sscan(value("/proc/meminfo", "MemTotal", ":"), &m.Memory) // 0 0 if unknown
	m.Memory <<= 10
	_, _ = fmt.Sscan(firstLine("/proc/loadavg"), &m.Load)
	return m
}

func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}

// value returns the value of a line "name … sep value" in a file.
func value(path, name, sep string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if key, v, ok := strings.Cut(line, sep); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// version runs a gateway to print its version.
func version(ctx context.Context, path string) string {
	out, err := exec.CommandContext(ctx, path, "version").Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) < 2 {
		return "unknown"
	}
	return fields[1]
}
