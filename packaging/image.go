package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nonroot is the user and the group of the image, by number: Kubernetes cannot see that a name is not root's.
const nonroot = 65532

// entry is one file or folder of the image.
type entry struct {
	name  string
	mode  fs.FileMode
	owner int
	text  []byte
}

// entries lists the whole of the image, parents first.
func entries(files string) ([]entry, error) {
	list := []entry{
		{"etc/", fs.ModeDir | 0o755, 0, nil},
		{"etc/group", 0o644, 0, fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonroot)},
		{"etc/headpond/", fs.ModeDir | 0o755, 0, nil}, // for the configuration
		{"etc/passwd", 0o644, 0, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%[1]d:nonroot:/var/lib/headpond:/sbin/nologin\n", nonroot)},
		{"etc/ssl/", fs.ModeDir | 0o755, 0, nil},
		{"etc/ssl/certs/", fs.ModeDir | 0o755, 0, nil},
		{"licenses/", fs.ModeDir | 0o755, 0, nil},
		{"tmp/", fs.ModeDir | fs.ModeSticky | 0o777, 0, nil},
		{"var/", fs.ModeDir | 0o755, 0, nil},
		{"var/lib/", fs.ModeDir | 0o755, 0, nil},
		{"var/lib/headpond/", fs.ModeDir | 0o750, nonroot, nil}, // for certificates, keys and SQLite files: a volume
	}
	for name, from := range map[string]string{
		"headpond":                          filepath.Join(files, programName),
		"etc/ssl/certs/ca-certificates.crt": filepath.Join(files, rootsName),
		"licenses/third-party-licenses.txt": filepath.Join(files, licensesName),
		"licenses/LICENSE":                  filepath.Join(top, "LICENSE"),
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		mode := fs.FileMode(0o644)
		if name == "headpond" {
			mode = 0o755
		}
		list = append(list, entry{name, mode, 0, text})
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// pack returns a tar archive of entries.
func pack(list []entry, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range list {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), Uid: e.owner, Gid: e.owner, Size: int64(len(e.text)), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if e.mode.IsDir() {
			h.Typeflag = tar.TypeDir
		}
		if e.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil { // it writes the end of the archive
		return nil, err
	}
	return b.Bytes(), nil
}

// buildImage makes the image. Dockerfile has the same settings; a test compares them.
func buildImage(o options) (v1.Image, error) {
	list, err := entries(o.files)
	if err != nil {
		return nil, err
	}
	content, err := pack(list, o.time)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer)
	if err != nil {
		return nil, err
	}
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Created = o.arch, "linux", v1.Time{Time: o.time}
	file.History = []v1.History{{Created: file.Created, CreatedBy: "make image"}}
	file.Config = v1.Config{
		User:       fmt.Sprintf("%d:%[1]d", nonroot),
		Env:        []string{"PATH=/"},
		Entrypoint: []string{"/headpond"},
		Cmd:        []string{"serve", "-watch", "/etc/headpond/headpond.yaml"},
		WorkingDir: "/var/lib/headpond",
		StopSignal: "SIGTERM",
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/headpond", "ctl", "health"}, Interval: 10 * time.Second, Timeout: 6 * time.Second, StartPeriod: 10 * time.Second, Retries: 3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "headpond",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/headpond/headpond",
		},
	}
	return mutate.ConfigFile(image, file)
}

// makeImage writes the image as an archive that is an OCI layout and also has what docker load reads.
func makeImage(o options) error {
	image, err := buildImage(o)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "headpond-packaging-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	tag := "headpond:" + imageTag(o.version)
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": imageTag(o.version), "io.containerd.image.name": "docker.io/library/" + tag}
	if err := index.AppendImage(image, layout.WithAnnotations(name), layout.WithPlatform(v1.Platform{OS: "linux", Architecture: o.arch})); err != nil {
		return err
	}
	if err := writeDockerManifest(filepath.Join(dir, "manifest.json"), image, tag); err != nil {
		return err
	}
	list, err := folder(dir)
	if err != nil {
		return err
	}
	archive, err := pack(list, o.time)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "headpond-"+o.version+"-linux-"+o.arch+".image.tar"), archive, 0o644) //nolint:gosec // public
}

// writeDockerManifest writes the file by which docker load finds configuration and layers among the blobs of an OCI layout.
func writeDockerManifest(name string, image v1.Image, tag string) error {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	var layers []string
	for _, l := range manifest.Layers {
		layers = append(layers, blob(l.Digest))
	}
	text, err := json.Marshal([]tarball.Descriptor{{Config: blob(manifest.Config.Digest), RepoTags: []string{tag}, Layers: layers}})
	return errors.Join(err, os.WriteFile(name, text, 0o600))
}

// folder lists what is in a folder, parents first.
func folder(dir string) (list []entry, err error) {
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		e := entry{name: filepath.ToSlash(rel), mode: 0o644}
		if d.IsDir() {
			e.name, e.mode = e.name+"/", fs.ModeDir|0o755
		} else if e.text, err = os.ReadFile(name); err != nil { //nolint:gosec // nobody else writes in the folder
			return err
		}
		list = append(list, e)
		return nil
	})
	return list, err
}
