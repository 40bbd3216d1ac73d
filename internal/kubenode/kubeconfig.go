package kubenode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"unicode/utf8"

	yaml "go.yaml.in/yaml/v4"
)

// Edit describes a change of a kubeconfig. It contains nothing secret.
type Edit struct {
	Cluster     string // its name
	From, To    string // the server; equal if it needed no change
	AddedName   string // the tls-server-name that was added; "" = none
	KeptName    string // the tls-server-name that was there; "" = none
	replaceable replaceable
}

// replaceable is the position of a value in a file.
type replaceable struct{ start, end int }

// maxKubeconfig bounds a kubeconfig: clusters of a thousand nodes have no larger one.
const maxKubeconfig = 1 << 20

// serverKey and nameKey are the keys that may be changed.
const (
	serverKey = "server"
	nameKey   = "tls-server-name"
)

// rewrite reads a kubeconfig and points the cluster of its current context at server. All other bytes stay the same.
// Errors and Edit quote nothing that may be secret.
func rewrite(name, server, serverName string) (File, error) {
	path, err := filepath.Abs(name)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return File{}, fmt.Errorf("-rewrite: %w", err)
	}
	data, info, err := readKubeconfig(path)
	if err != nil {
		return File{}, fmt.Errorf("-rewrite %s: %w", name, err)
	}
	changed, edit, err := pointAt(data, server, serverName)
	if err != nil {
		return File{}, fmt.Errorf("-rewrite %s: %w", name, err)
	}
	return File{Path: path, Mode: info.Mode().Perm(), Data: changed, Edit: &edit, original: info, before: data}, nil
}

func readKubeconfig(path string) ([]byte, os.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errors.New("it is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKubeconfig+1))
	if err == nil && len(data) > maxKubeconfig {
		err = fmt.Errorf("it is larger than %d KiB, too large for a kubeconfig", maxKubeconfig>>10)
	}
	return data, info, err
}

// pointAt returns data with a new server for the cluster of the current context, and with a tls-server-name if it had
// none and serverName is not "".
func pointAt(data []byte, server, serverName string) ([]byte, Edit, error) {
	root, err := document(data)
	if err != nil {
		return nil, Edit{}, err
	}
	name, cluster, err := currentCluster(root)
	if err != nil {
		return nil, Edit{}, err
	}
	at, key := value(cluster, serverKey)
	if at == nil {
		return nil, Edit{}, fmt.Errorf("the cluster %q has no server", name)
	}
	e := Edit{Cluster: name, From: at.Value, To: server}
	if err := checkServer(at.Value); err != nil {
		return nil, e, fmt.Errorf("line %d: the server of the cluster %q %w", at.Line, name, err)
	}
	if proxy, _ := value(cluster, "proxy-url"); proxy != nil && proxy.Value != "" {
		return nil, e, fmt.Errorf("line %d: the cluster %q is reached through a proxy-url, which cannot reach this machine: remove it", proxy.Line, name)
	}
	if e.replaceable, err = find(data, at); err != nil {
		return nil, e, err
	}
	if old, _ := value(cluster, nameKey); old != nil {
		e.KeptName = old.Value
	} else {
		e.AddedName = serverName
	}
	changed := e.apply(data, cluster.Style&yaml.FlowStyle != 0, key.Column)
	return changed, e, e.verify(root, changed)
}

// document parses a kubeconfig. The errors of the YAML library may quote its content.
func document(data []byte) (*yaml.Node, error) {
	var root yaml.Node
	if yaml.Unmarshal(data, &root) != nil || len(root.Content) != 1 || root.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("it is not in the form of a kubeconfig")
	}
	return root.Content[0], nil
}

// currentCluster returns the cluster of the current context, or the only one.
func currentCluster(root *yaml.Node) (name string, cluster *yaml.Node, err error) {
	clusters := named(root, "clusters", "cluster")
	want, contexts := "", named(root, "contexts", "context")
	if current, _ := value(root, "current-context"); current != nil {
		for _, c := range contexts {
			if cluster, _ := value(c.node, "cluster"); c.name == current.Value && cluster != nil {
				want = cluster.Value
			}
		}
	}
	var names []string
	for _, c := range clusters {
		if c.name == want || want == "" && len(clusters) == 1 {
			return c.name, c.node, nil
		}
		names = append(names, c.name)
	}
	if want != "" {
		return "", nil, fmt.Errorf("its current context is of the cluster %q, and it has only %q", want, names)
	}
	return "", nil, fmt.Errorf("it has the clusters %q, and no current context that names one of them", names)
}

// item is an element of a kubeconfig's lists: a name and its object.
type item struct {
	name string
	node *yaml.Node
}

func named(root *yaml.Node, list, key string) (items []item) {
	all, _ := value(root, list)
	if all == nil || all.Kind != yaml.SequenceNode {
		return nil
	}
	for _, one := range all.Content {
		name, _ := value(one, "name")
		node, _ := value(one, key)
		if name != nil && node != nil && node.Kind == yaml.MappingNode {
			items = append(items, item{name.Value, node})
		}
	}
	return items
}

// value returns a mapping's value for a key, and the key; nil if there is none.
func value(m *yaml.Node, key string) (v, k *yaml.Node) {
	if m.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1], m.Content[i]
		}
	}
	return nil, nil
}

// checkServer refuses servers that a gateway of byte streams cannot replace. It quotes nothing: a URL may contain a
// password.
func checkServer(server string) error {
	u, err := url.Parse(server)
	switch {
	case err != nil || u.Host == "":
		return errors.New("is no https://host:port")
	case u.Scheme != "https":
		return errors.New("is not https: the gateway forwards TLS")
	case u.User != nil:
		return errors.New("has a user in its URL")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return errors.New("has a path: it is no API server, but a proxy before one")
	}
	return nil
}

// find returns the position of a value in data.
func find(data []byte, v *yaml.Node) (replaceable, error) {
	start := 0
	for range v.Line - 1 {
		start += bytes.IndexByte(data[start:], '\n') + 1
	}
	for range v.Column - 1 { // columns count characters
		_, size := utf8.DecodeRune(data[start:])
		start += size
	}
	for _, quote := range []string{"", `"`, "'"} {
		if text := quote + v.Value + quote; bytes.HasPrefix(data[start:], []byte(text)) {
			return replaceable{start, start + len(text)}, nil
		}
	}
	return replaceable{}, fmt.Errorf("line %d: write the server's URL there as it is, without tags, anchors and escapes", v.Line)
}

// apply returns data with the edit made. Columns are counted from 1.
func (e *Edit) apply(data []byte, flow bool, column int) []byte {
	var out bytes.Buffer
	out.Write(data[:e.replaceable.start])
	fmt.Fprintf(&out, "%q", e.To) // valid in JSON and in YAML
	rest := data[e.replaceable.end:]
	switch {
	case e.AddedName == "":
	case flow:
		fmt.Fprintf(&out, ", %q: %q", nameKey, e.AddedName)
	default:
		line, after, more := bytes.Cut(rest, []byte("\n")) // the end of the server's line may have a comment
		end := "\n"
		if bytes.HasSuffix(line, []byte("\r")) {
			end = "\r\n"
		}
		out.Write(bytes.TrimSuffix(line, []byte("\r")))
		fmt.Fprintf(&out, "%s%s%s: %q%s", end, strings.Repeat(" ", column-1), nameKey, e.AddedName, end)
		if rest = after; !more {
			rest = nil
		}
	}
	out.Write(rest)
	return out.Bytes()
}

// verify parses the changed kubeconfig and compares it with the intended one.
func (e *Edit) verify(root *yaml.Node, changed []byte) error {
	after, err := document(changed)
	if err != nil {
		return errors.New("cannot be edited: write it as kubectl does")
	}
	_, cluster, err := currentCluster(root)
	if err != nil {
		return err
	}
	at, _ := value(cluster, serverKey)
	at.Value = e.To
	if e.AddedName != "" {
		cluster.Content = append(cluster.Content, scalar(nameKey), scalar(e.AddedName))
	}
	var want, got any
	if root.Decode(&want) != nil || after.Decode(&got) != nil || !reflect.DeepEqual(want, got) {
		return errors.New("cannot be edited: write it as kubectl does")
	}
	return nil
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// filesOf returns the files that a kubeconfig names: certificates, keys and tokens.
func filesOf(path string) ([]string, error) {
	data, _, err := readKubeconfig(path)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig: %w", err)
	}
	root, err := document(data)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig %s: %w", path, err)
	}
	var files []string
	for _, list := range [][]item{named(root, "clusters", "cluster"), named(root, "users", "user")} {
		for _, one := range list {
			for _, key := range []string{"certificate-authority", "client-certificate", "client-key", "tokenFile"} {
				v, _ := value(one.node, key)
				if v == nil || v.Value == "" {
					continue
				}
				name := v.Value
				if !filepath.IsAbs(name) {
					name = filepath.Join(filepath.Dir(path), name)
				}
				if err := checkPath(name); err != nil {
					return nil, fmt.Errorf("-kubeconfig %s: %s %w", path, key, err)
				}
				files = append(files, name)
			}
		}
	}
	return files, nil
}
