package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const description = `connection-pooling gateway for PostgreSQL, HTTP, TCP and SQLite
Headpond keeps connections to servers open and leases them to clients: a
pooler for PostgreSQL in transaction and session mode, and a reverse proxy
for HTTP, TCP and UDP, with health checks, reload and upgrades without a
refused client.`

// makePackages writes a package for dpkg and one for rpm.
func makePackages(o options) error {
	for _, format := range []string{"deb", "rpm"} {
		if err := makePackage(o, format); err != nil {
			return errors.Join(errors.New("the "+format+" package"), err)
		}
	}
	return nil
}

func makePackage(o options, format string) (err error) {
	work, err := os.MkdirTemp("", "headpond-packaging-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	contents, err := contentsOf(o, format, work)
	if err != nil {
		return err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "headpond", Arch: o.arch, Platform: "linux", Section: "net", Priority: "optional",
		Version: packageVersion(o.version, o.time), VersionSchema: "none", Release: "1",
		Maintainer: maintainer, Description: description,
		Homepage: "https://github.com/headpond/headpond", License: "Apache-2.0", MTime: o.time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{Contents: contents, Scripts: scriptsOf(format), Depends: dependsOf(format)},
	})
	info.RPM.BuildHost, info.RPM.Group = "localhost", "System Environment/Daemons"
	info.RPM.Summary, _, _ = strings.Cut(description, "\n")
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(o.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, f), f.Close())
}

// dependsOf returns the packages with useradd: the program needs nothing else.
func dependsOf(format string) []string {
	if format == "deb" {
		return []string{"passwd"}
	}
	return []string{"shadow-utils"}
}

func scriptsOf(format string) nfpm.Scripts {
	if format == "deb" {
		return nfpm.Scripts{PostInstall: "scripts/deb.postinst", PreRemove: "scripts/deb.prerm", PostRemove: "scripts/deb.postrm"}
	}
	return nfpm.Scripts{PreInstall: "scripts/rpm.pre", PostInstall: "scripts/rpm.post", PreRemove: "scripts/rpm.preun", PostRemove: "scripts/rpm.postun"}
}

// contentsOf lists the files of a package. Those that are made of others are written below work.
func contentsOf(o options, format, work string) (files.Contents, error) {
	const doc = "/usr/share/doc/headpond/"
	zsh, group := "/usr/share/zsh/vendor-completions/_headpond", "root" // postinst knows the group
	if format == "rpm" {
		zsh, group = "/usr/share/zsh/site-functions/_headpond", "headpond"
	}
	changelog, err := os.ReadFile(filepath.Join(top, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	list := files.Contents{
		file(filepath.Join(o.files, programName), "/usr/bin/headpond", 0o755),
		file("scripts/upgrade", "/usr/lib/headpond/upgrade", 0o755),
		file(filepath.Join(o.files, manualName), "/usr/share/man/man1/headpond.1.gz", 0o644),
		file(filepath.Join(o.files, completions["bash"]), "/usr/share/bash-completion/completions/headpond", 0o644),
		file(filepath.Join(o.files, completions["zsh"]), zsh, 0o644),
		file(filepath.Join(o.files, completions["fish"]), "/usr/share/fish/vendor_completions.d/headpond.fish", 0o644),
		{Destination: "/etc/headpond", Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Mode: 0o750, Owner: "root", Group: group}},
		{Source: "headpond.yaml", Destination: "/etc/headpond/headpond.yaml", Type: files.TypeConfigNoReplace, FileInfo: &files.ContentFileInfo{Mode: 0o640, Owner: "root", Group: group}},
		file(filepath.Join(top, "README.md"), doc+"README.md", 0o644),
	}
	licenses, err := os.ReadFile(filepath.Join(o.files, licensesName))
	if err != nil {
		return nil, err
	}
	service, err := unit()
	if err != nil {
		return nil, err
	}
	made := map[string][]byte{doc + licensesName + ".gz": compressed(licenses), "/usr/lib/systemd/system/headpond.service": service}
	if format == "deb" {
		made[doc+"changelog.Debian.gz"], made[doc+"copyright"] = compressed(debianChangelog(o)), []byte(copyright)
		made["/usr/share/lintian/overrides/headpond"] = []byte(overrides)
	} else {
		made[doc+"CHANGELOG.md"] = changelog
		list = append(list, &files.Content{Source: filepath.Join(top, "LICENSE"), Destination: "/usr/share/licenses/headpond/LICENSE", Type: files.TypeRPMLicense})
	}
	for name, text := range made {
		from := filepath.Join(work, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(from, text, 0o600); err != nil {
			return nil, err
		}
		list = append(list, file(from, name, 0o644))
	}
	return appendExamples(list, doc+"examples/")
}

// file is a file of a package that belongs to root.
func file(from, to string, mode os.FileMode) *files.Content {
	return &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Mode: mode, Owner: "root", Group: "root"}}
}

// appendExamples appends the repository's example configurations, to be installed in the folder to.
func appendExamples(list files.Contents, to string) (files.Contents, error) {
	examples, err := filepath.Glob(filepath.Join(top, "examples", "*.yaml"))
	if err != nil || len(examples) == 0 {
		return nil, errors.Join(errors.New("no examples"), err)
	}
	for _, e := range examples {
		list = append(list, file(e, to+filepath.Base(e), 0o644))
	}
	return list, nil
}

// unit returns the unit of the service without the comment at its beginning, which is for those who copy it.
func unit() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(top, "examples", "headpond.service"))
	if err != nil {
		return nil, err
	}
	_, sections, found := bytes.Cut(text, []byte("\n\n"))
	if !found || !bytes.HasPrefix(sections, []byte("[Unit]")) {
		return nil, errors.New("examples/headpond.service: want a comment, an empty line and [Unit]")
	}
	return sections, nil
}

// debianChangelog returns what dpkg's tools can read, with the way to the changes themselves.
func debianChangelog(o options) []byte {
	var b bytes.Buffer
	_, _ = fmt.Fprintf(&b, "headpond (%s-1) stable; urgency=medium\n\n  * See https://github.com/headpond/headpond/blob/main/CHANGELOG.md\n\n -- %s  %s\n",
		packageVersion(o.version, o.time), maintainer, o.time.Format(time.RFC1123Z))
	return b.Bytes()
}

const maintainer = "The Headpond authors <headpond@users.noreply.github.com>"

// overrides are lintian's findings that are meant to be: a Go program is static, and the configuration may have passwords.
const overrides = `headpond: statically-linked-binary [usr/bin/headpond]
headpond: non-standard-dir-perm 0750 != 0755 [etc/headpond/]
headpond: non-standard-file-perm 0640 != 0644 [etc/headpond/headpond.yaml]
headpond: initial-upload-closes-no-bugs *
headpond: unknown-field License
`

// copyright is Debian's file about the licence. The licences of the modules that are linked in are in a file beside it.
const copyright = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Headpond
Source: https://github.com/headpond/headpond

Files: *
Copyright: 2026 The Headpond authors
License: Apache-2.0
Comment: The program contains other modules; their licences are in
 /usr/share/doc/headpond/third-party-licenses.txt.gz.

License: Apache-2.0
 On Debian systems the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
`
