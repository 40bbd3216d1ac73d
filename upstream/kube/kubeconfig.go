package kube

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// kubeconfig has the fields of a kubeconfig that are used, or that cause an error.
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Contexts       []kubeContext
	Clusters       []struct {
		Name    string
		Cluster kubeCluster
	}
	Users []struct {
		Name string
		User kubeUser
	}
}

type kubeContext struct {
	Name    string
	Context struct{ Cluster, User string }
}

type kubeCluster struct {
	Server        string
	CA            string `yaml:"certificate-authority"`
	CAData        string `yaml:"certificate-authority-data"`
	TLSServerName string `yaml:"tls-server-name"`
	Insecure      bool   `yaml:"insecure-skip-tls-verify"`
	ProxyURL      string `yaml:"proxy-url"`
}

type kubeUser struct {
	Cert      string `yaml:"client-certificate"`
	CertData  string `yaml:"client-certificate-data"`
	Key       string `yaml:"client-key"`
	KeyData   string `yaml:"client-key-data"`
	Token     string
	TokenFile string    `yaml:"tokenFile"`
	Username  string    // used before version 1.19
	Exec      yaml.Node // a program that makes tokens
	Provider  yaml.Node `yaml:"auth-provider"`
}

// CheckKubeconfig reports why a kubeconfig cannot be used. Errors do not repeat
// secrets.
func CheckKubeconfig(path, context string) error {
	_, err := readKubeconfig(path, context)
	return err
}

func readKubeconfig(path, context string) (credentials, error) {
	data, err := readFile(path)
	if err != nil {
		return credentials{}, err
	}
	c, err := parseKubeconfig(data, context, filepath.Dir(path))
	if err != nil {
		return c, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return c, nil
}

// parseKubeconfig returns the credentials of a context; paths are relative to dir.
func parseKubeconfig(data []byte, context, dir string) (c credentials, err error) {
	var k kubeconfig
	if yaml.Unmarshal(data, &k) != nil {
		return c, fmt.Errorf("it is not a valid kubeconfig") // the error may quote a key
	}
	context = cmp.Or(context, k.CurrentContext)
	i := slices.IndexFunc(k.Contexts, func(n kubeContext) bool { return n.Name == context })
	if i < 0 {
		var names []string
		for _, n := range k.Contexts {
			names = append(names, n.Name)
		}
		return c, fmt.Errorf("it has no context %q, only %q", context, names)
	}
	names := k.Contexts[i].Context
	for _, n := range k.Clusters {
		if n.Name == names.Cluster {
			err = c.ofCluster(n.Cluster, dir)
		}
	}
	for _, n := range k.Users {
		if n.Name == names.User && err == nil {
			err = c.ofUser(n.User, dir)
		}
	}
	if err == nil && c.server == "" {
		err = fmt.Errorf("the context %q has no server", context)
	}
	return c, err
}

// ofCluster takes the API server of a cluster.
func (c *credentials) ofCluster(k kubeCluster, dir string) (err error) {
	switch {
	case k.Insecure:
		return fmt.Errorf("insecure-skip-tls-verify is not supported; name a certificate-authority")
	case k.ProxyURL != "":
		return fmt.Errorf("proxy-url is not supported")
	}
	c.server, c.serverName = k.Server, k.TLSServerName
	c.ca, err = fileOrData("certificate-authority", k.CA, k.CAData, dir)
	return err
}

// ofUser takes the credentials of a user.
func (c *credentials) ofUser(k kubeUser, dir string) (err error) {
	switch {
	case !k.Exec.IsZero(), !k.Provider.IsZero():
		return fmt.Errorf("users with exec or auth-provider are not supported; use a client certificate or a token file")
	case k.Username != "":
		return fmt.Errorf("users with a password are not supported; use a client certificate or a token file")
	}
	if c.cert, err = fileOrData("client-certificate", k.Cert, k.CertData, dir); err != nil {
		return err
	}
	if c.key, err = fileOrData("client-key", k.Key, k.KeyData, dir); err != nil {
		return err
	}
	c.token = secret{value: []byte(k.Token)}
	if k.TokenFile != "" {
		c.token = secret{file: resolve(k.TokenFile, dir)}
	}
	return nil
}

// fileOrData returns a value of a kubeconfig, inline or in another file; the inline one takes
// precedence.
func fileOrData(key, file, data, dir string) (secret, error) {
	if data == "" && file != "" {
		return secret{file: resolve(file, dir)}, nil
	}
	value, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	if err != nil {
		return secret{}, fmt.Errorf("%s-data is not base64", key)
	}
	return secret{value: value}, nil
}

func resolve(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
