package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestVersionsAreInOrder: of dpkg and of rpm, for which "~" is before the end of the text and "+" after it.
func TestVersionsAreInOrder(t *testing.T) {
	at := time.Unix(1796000000, 0).UTC()
	for version, want := range map[string]string{
		"v1.2.3":                   "1.2.3",
		"v1.2.3-rc1":               "1.2.3~rc1",
		"v1.2.3-12-g0123abc":       "1.2.3+12.0123abc",
		"v1.2.3-12-g0123abc-dirty": "1.2.3+12.0123abc+dirty",
		"154ac032":                 "0~20261130.005320.154ac032",
		"154ac032-dirty":           "0~20261130.005320.154ac032.dirty",
		"v1.2.3-rc1-2-g0123abc":    "1.2.3~rc1+2.0123abc",
		"unknown":                  "0~20261130.005320.unknown",
	} {
		if got := packageVersion(version, at); got != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}

// someFiles makes a folder as makeFiles does, without a program that runs.
func someFiles(t *testing.T) options {
	t.Helper()
	o := options{files: t.TempDir(), out: t.TempDir(), arch: "arm64", version: "v1.2.3", time: time.Unix(1796000000, 0).UTC()}
	names := []string{programName, manualName, licensesName, rootsName}
	for _, name := range completions {
		names = append(names, name)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(o.files, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// TestArchivesAreWhole: tar reads images and layers to the end, which GNU tar and others insist on.
func TestArchivesAreWhole(t *testing.T) {
	archive, err := pack([]entry{{"a", 0o644, 0, []byte("text")}}, time.Unix(1796000000, 0))
	if err != nil {
		t.Fatal(err)
	}
	if end := make([]byte, 1024); len(archive) != 512+512+len(end) || !bytes.HasSuffix(archive, end) {
		t.Errorf("%d bytes: the last file is not padded, or the end is not marked", len(archive))
	}
}

// TestSameFilesSameBytes makes packages and the image twice.
func TestSameFilesSameBytes(t *testing.T) {
	o := someFiles(t)
	var made []map[string]string
	for range 2 {
		o.out = t.TempDir()
		if err := makePackages(o); err != nil {
			t.Fatal(err)
		}
		if err := makeImage(o); err != nil {
			t.Fatal(err)
		}
		if err := makeChart(o); err != nil {
			t.Fatal(err)
		}
		files, err := folder(o.out)
		if err != nil {
			t.Fatal(err)
		}
		content := map[string]string{}
		for _, f := range files {
			content[f.name] = string(f.text)
		}
		made = append(made, content)
	}
	for _, name := range []string{"headpond_1.2.3-1_arm64.deb", "headpond-1.2.3-1.aarch64.rpm", "headpond-v1.2.3-linux-arm64.image.tar", "headpond-chart-v1.2.3.tgz"} {
		if made[0][name] == "" || made[0][name] != made[1][name] {
			t.Errorf("%s is not the same twice, or is not there", name)
		}
	}
}

// TestImage validates the image, and compares it with Dockerfile.
func TestImage(t *testing.T) {
	image, err := buildImage(someFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	if index, err := layout.Write(t.TempDir(), empty.Index); err != nil {
		t.Fatal(err)
	} else if err := index.AppendImage(image); err != nil {
		t.Fatal(err)
	} else if read, err := index.ImageIndex(); err != nil {
		t.Fatal(err)
	} else if err := validate.Index(read); err != nil {
		t.Error(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(top, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	list := func(words []string) string {
		out, err := json.Marshal(words)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	c := file.Config
	for _, want := range []string{
		"USER " + c.User, "ENV " + c.Env[0], "WORKDIR " + c.WorkingDir, "STOPSIGNAL " + c.StopSignal, "ENTRYPOINT " + list(c.Entrypoint), "CMD " + list(c.Cmd),
		"HEALTHCHECK --interval=10s --timeout=6s --start-period=10s --retries=3 CMD " + list(c.Healthcheck.Test[1:]),
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("Dockerfile has no line %q", want)
		}
	}
}

// TestRoots: the authorities are there, and none that may certify only some names.
func TestRoots(t *testing.T) {
	if n := strings.Count(string(roots()), "BEGIN CERTIFICATE"); n < 50 {
		t.Errorf("%d certificates", n)
	}
}
