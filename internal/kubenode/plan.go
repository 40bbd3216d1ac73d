package kubenode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"text/template"
)

// File is a file of the node.
type File struct {
	Path string // where the file belongs
	Mode fs.FileMode
	Data []byte
	// Edit describes the change of a kubeconfig; nil for new files. The content of a changed kubeconfig is secret.
	Edit *Edit

	original fs.FileInfo // of a kubeconfig: the file whose owner is kept
	before   []byte      // of a kubeconfig: its old content
}

// Files are all that a node needs.
type Files []File

// Plan returns the files that o asks for. It reads the kubeconfigs to rewrite, and with Image the one with the
// gateway's credentials.
func Plan(o Options) (Files, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := plan{Options: o}
	p.mount()
	files := Files{{Path: o.Config, Mode: 0o644, Data: p.execute(configTemplate)}}
	if o.Image == "" {
		files = append(files, File{Path: unitPath, Mode: 0o644, Data: p.execute(unitTemplate)})
	} else {
		if err := p.mountCredentials(); err != nil {
			return nil, err
		}
		files = append(files, File{Path: path.Join(o.Manifests, podManifest), Mode: 0o644, Data: p.execute(podTemplate)})
	}
	for _, name := range o.Rewrite {
		f, err := rewrite(name, "https://"+o.Listen, o.ServerName)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	seen := map[string]bool{}
	for _, f := range files {
		if seen[f.Path] {
			return nil, fmt.Errorf("there would be two files %s (-config, -manifests, -rewrite)", f.Path)
		}
		seen[f.Path] = true
	}
	return files, nil
}

// plan is the data of the templates.
type plan struct {
	Options
	Mounts []mount
}

// mount is a path of the host in a static pod.
type mount struct {
	Name, Path, Type string
	Write            bool
}

// mount adds the directories and files that every pod needs.
func (p *plan) mount() {
	p.add("config", filepath.Dir(p.Config), "Directory", false)
	p.add("state", p.State, "DirectoryOrCreate", true)
	p.add("ca", p.CA, "File", false)
}

// add mounts a path, unless a mounted directory contains it.
func (p *plan) add(name, path, kind string, write bool) {
	for _, m := range p.Mounts {
		if (m.Write || !write) && (m.Path == path || m.Type != "File" && within(path, m.Path)) {
			return
		}
	}
	p.Mounts = append(p.Mounts, mount{name, path, kind, write})
}

func within(name, dir string) bool {
	rel, err := filepath.Rel(dir, name)
	return err == nil && filepath.IsLocal(rel)
}

// mountCredentials adds the files of the gateway's credentials. Tokens and certificates are replaced by a rename, so
// their directory is mounted: a single mounted file would stay the old one.
func (p *plan) mountCredentials() error {
	rotated := []string{p.TokenFile, p.Cert, p.Key}
	if p.Kubeconfig != "" {
		p.add("kubeconfig", p.Kubeconfig, "File", false)
		named, err := filesOf(p.Kubeconfig)
		if err != nil {
			return err
		}
		rotated = append(rotated, named...)
	}
	for i, name := range rotated {
		if name != "" {
			p.add(fmt.Sprintf("credentials-%d", i+1), filepath.Dir(name), "Directory", false)
		}
	}
	return nil
}

// execute makes a file from a template. Templates are parsed only here, so that a running gateway keeps none in memory.
func (p *plan) execute(text string) []byte {
	var out bytes.Buffer
	if err := template.Must(template.New("").Funcs(functions).Parse(text)).Execute(&out, p); err != nil {
		panic(err) // the template asks for an unknown field
	}
	return out.Bytes()
}

// Port is the port of the admin page, and AdminHost its host.
func (p *plan) Port() string { _, port := splitAdmin(p.Admin); return port }

// AdminHost is the host for probes: the wildcard address stands for all addresses and is none
// itself.
func (p *plan) AdminHost() string { host, _ := splitAdmin(p.Admin); return host }

// Folder is the folder of the configuration.
func (p *plan) Folder() string { return filepath.Dir(p.Config) }

// Follows reports whether the gateway follows the cluster's list.
func (p *plan) Follows() bool { return p.follows() }

// StateName is the cache's directory in the form of systemd's StateDirectory.
func (p *plan) StateName() string {
	name, _ := filepath.Rel(stateRoot, p.State) // the path was checked
	return name
}

// Drain is how long the gateway drains, in seconds, and Stop after how many it is killed.
func (p *plan) Drain() int {
	if p.Image != "" {
		return drainSecondsPod
	}
	return drainSeconds
}

// Stop is twice as long: see Drain.
func (p *plan) Stop() int { return 2 * p.Drain() }

// quote writes a string for YAML.
func quote(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}
