package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	chart = chartFolder
	base  = top + "/deploy/kubernetes/gateway"
)

// programs is the folder of the programs that buildPrograms builds.
var programs string

// buildPrograms builds Helm, of the version in go.mod, and the gateway, once.
var buildPrograms = sync.OnceValue(func() error {
	for _, build := range []struct{ in, pkg, env string }{
		{".", "helm.sh/helm/v3/cmd/helm", "GOWORK=off"},
		{top, "./cmd/headpond", "GOWORK="},
	} {
		cmd := exec.Command("go", "build", "-o", programs+string(filepath.Separator), build.pkg)
		cmd.Dir, cmd.Env = build.in, append(os.Environ(), build.env, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", build.pkg, err, out)
		}
	}
	return nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "headpond-chart")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// runProgram runs one of programs.
func runProgram(t *testing.T, name string, args ...string) (stdout string, err error) {
	t.Helper()
	if err := buildPrograms(); err != nil {
		t.Fatal(err)
	}
	var out, problems bytes.Buffer
	cmd := exec.Command(filepath.Join(programs, name), args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	cmd.Env = append(os.Environ(), "DATABASE=app")
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", name, err, out.String(), problems.String())
	}
	return out.String(), err
}

// object is a manifest.
type object map[string]any

// at returns what is at a path of keys and indexes, nil if nothing is.
func (o object) at(path ...any) any {
	var v any = map[string]any(o)
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func (o object) String() string {
	return fmt.Sprintf("%v %v/%v", o["kind"], o.at("metadata", "namespace"), o.at("metadata", "name"))
}

// objects parses a stream of manifests, ordered by kind and name.
func objects(t *testing.T, text string) []object {
	t.Helper()
	var all []object
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(part+"\n"), &o); err != nil {
			t.Fatalf("%v\n%s", err, part)
		}
		if o != nil {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b object) int { return cmp.Compare(a.String(), b.String()) })
	return all
}

// render returns what the release "headpond" in the namespace of that name consists of.
func render(t *testing.T, args ...string) []object {
	t.Helper()
	out, err := runProgram(t, "helm", append([]string{"template", "headpond", chart, "-n", "headpond", "--kube-version", "1.35"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, out)
}

// find returns the object that has a kind and name.
func find(t *testing.T, all []object, name string) object {
	t.Helper()
	for _, o := range all {
		if o.String() == name {
			return o
		}
	}
	t.Fatalf("no %s among %v", name, all)
	return nil
}

// values are the arguments for the files in the chart's folder ci.
func values(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, name := range []string{"base", "everything", "daemonset"} {
		all[name] = []string{"-f", chart + "/ci/" + name + "-values.yaml"}
	}
	all["base"] = append(all["base"], "--set-file", "config="+base+"/headpond.yaml")
	return all
}

// TestChartLints, also without values.
func TestChartLints(t *testing.T) {
	all := values(t)
	all["none"] = nil
	for name, args := range all {
		out, err := runProgram(t, "helm", append([]string{"lint", "--strict", chart}, args...)...)
		if err != nil || strings.Contains(out, "[WARNING]") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestChartHasTheConfigurationInIt: it reaches the gateway as it was written, and the gateway accepts it where the pod has its files.
func TestChartHasTheConfigurationInIt(t *testing.T) {
	for name, args := range values(t) {
		all := render(t, args...)
		configs := 0
		for _, o := range all {
			text, ok := o.at("data", "headpond.yaml").(string)
			if !ok {
				continue
			}
			configs++
			dir := t.TempDir()
			for _, folder := range []string{"/etc/headpond-secrets/", "/etc/headpond-more/"} {
				text = strings.ReplaceAll(text, folder, dir+"/")
			}
			for name, content := range map[string]string{"headpond.yaml": text, "users.txt": "\"alice\" \"secret\"\n", "app.password": "secret\n"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := runProgram(t, "headpond", "check", filepath.Join(dir, "headpond.yaml")); err != nil {
				t.Errorf("%s, %v: %v\n%s", name, o, err, out)
			}
		}
		if want := 1 + strings.Count(fmt.Sprint(all), "Job headpond/"); configs != want {
			t.Errorf("%s: %d configurations, want %d: %v", name, configs, want, all)
		}
	}
	want, err := os.ReadFile(base + "/headpond.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := find(t, render(t, values(t)["base"]...), "ConfigMap headpond/headpond").at("data", "headpond.yaml"); got != string(want) {
		t.Errorf("the configuration has changed on its way:\n%s", got)
	}
}

// TestChartAndBaseMakeTheSame compares what the chart makes by default with what the base for kustomize makes.
func TestChartAndBaseMakeTheSame(t *testing.T) {
	dir := t.TempDir()
	from, err := filepath.Abs(base)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "base"), os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	overlay := "namespace: headpond\nresources: [base, base/monitoring.yaml]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Concat(values(t)["base"], []string{"--set", "checkConfig=false,serviceMonitor.enabled=true"})
	got, want := normal(t, render(t, args...)), normal(t, objects(t, string(text)))
	delete(want, "Namespace <nil>/headpond") // of helm install --create-namespace
	for name, text := range want {
		if got[name] == "" {
			t.Errorf("the chart has no %s", name)
		} else if got[name] != text {
			t.Errorf("%s: the chart has\n%s\nthe base has\n%s", name, got[name], text)
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("the base has no %s", name)
		}
	}
}

// normal returns objects as text, without the labels that Helm adds and values that are the API's defaults.
func normal(t *testing.T, all []object) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, o := range all {
		text, err := yaml.Marshal(plain(map[string]any(o)))
		if err != nil {
			t.Fatal(err)
		}
		texts[o.String()] = string(text)
	}
	return texts
}

// plain removes from a value what normal leaves out.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = plain(value)
		}
		for _, key := range []string{"instance", "version", "managed-by"} {
			delete(v, "app.kubernetes.io/"+key)
		}
		delete(v, "helm.sh/chart")
		for key, value := range map[string]any{"protocol": "TCP", "type": "ClusterIP", "imagePullPolicy": "IfNotPresent"} {
			if v[key] == value {
				delete(v, key)
			}
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return v
}

// TestChartFollowsTheConfiguration: ports, the end of the pods and the probes.
func TestChartFollowsTheConfiguration(t *testing.T) {
	all := render(t, values(t)["everything"]...)
	pod := object(find(t, all, "Deployment headpond/gate").at("spec", "template", "spec").(map[string]any))
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"the ports of the pod", pod.at("containers", 0, "ports"), "[map[containerPort:8443 name:site-with-a-lon protocol:TCP] map[containerPort:5353 name:dns protocol:UDP] map[containerPort:9091 name:admin protocol:TCP]]"},
		{"those of the Service", find(t, all, "Service headpond/gate").at("spec", "ports"), "[map[name:site-with-a-lon port:443 protocol:TCP targetPort:site-with-a-lon] map[name:dns port:5353 protocol:UDP targetPort:dns]]"},
		{"the time for the end", pod.at("terminationGracePeriodSeconds"), 10 + 90 + 10},
		{"the time for one that hangs", pod.at("containers", 0, "livenessProbe", "terminationGracePeriodSeconds"), 10},
		{"the limit of Go", pod.at("containers", 0, "env", 0, "value"), "1382MiB"},
		{"the image", pod.at("containers", 0, "image"), "registry.example.org/headpond@sha256:" + strings.Repeat("0123456789abcdef", 4)},
		{"the account", pod.at("serviceAccountName"), "gate"},
		{"its token", pod.at("automountServiceAccountToken"), true},
		{"who may discover", find(t, all, "RoleBinding prod/headpond-gate-endpoints").at("subjects"), "[map[kind:ServiceAccount name:gate namespace:headpond]]"},
		{"who may connect", find(t, all, "NetworkPolicy headpond/gate").at("spec", "ingress", 0, "from"), nil},
	} {
		if fmt.Sprint(c.got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n%v\nwant\n%v", c.what, c.got, c.want)
		}
	}
	daemons := render(t, values(t)["daemonset"]...)
	if got := find(t, daemons, "DaemonSet headpond/headpond").at("spec", "template", "spec", "terminationGracePeriodSeconds"); fmt.Sprint(got) != "3600" {
		t.Errorf("drain_timeout: never ends after %v s", got)
	}
	for _, o := range daemons {
		if o["kind"] == "PodDisruptionBudget" {
			t.Error("no budget counts the pods of a DaemonSet")
		}
	}
}

// TestChartRefuses what would fail in the cluster, or only when a pod ends.
func TestChartRefuses(t *testing.T) {
	config := filepath.Join(t.TempDir(), "headpond.yaml")
	for _, c := range []struct{ config, set, want string }{
		{"", "", "config is required"},
		{"admin: [", "", "config is not YAML"},
		{"listeners: []", "", "admin must be an address that the kubelet"},
		{"admin: 127.0.0.1:9090", "", "admin must be an address that the kubelet"},
		{"admin: localhost:9090", "", "admin must be an address that the kubelet"},
		{"admin: unix:/run/admin", "", "admin must be an address that the kubelet"},
		{"admin: :9090\ndrain_timeout: never", "", "needs terminationGracePeriodSeconds"},
		{"admin: :9090\ndrain_timeout: 1m", "terminationGracePeriodSeconds=65", "the sessions of a pod end after preStopSeconds and drain_timeout, 65 s"},
		{"admin: :9090", "replica=3", "replica"},
		{"admin: :9090", "kind=StatefulSet", "kind"},
		{"admin: :9090", "resources.limits.memory=lots", "memory"},
		{"admin: :9090", "extraVolumeMounts[0].name=a,extraVolumeMounts[0].mountPath=/a,extraVolumeMounts[0].subPath=b", "subPath"},
	} {
		if err := os.WriteFile(config, []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"template", "headpond", chart, "--kube-version", "1.35", "--set-file", "config=" + config}
		if c.set != "" {
			args = append(args, "--set", c.set)
		}
		if out, err := runProgram(t, "helm", args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %s: want %q, got %v\n%s", c.config, c.set, c.want, err, out)
		}
	}
}

// TestChartOfARelease: helm takes the archive, whose version is semantic, and runs the image of that release.
func TestChartOfARelease(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3":                   "1.2.3",
		"v1.2.3-rc1":               "1.2.3-rc.1",
		"v1.2.3-12-g0123abc-dirty": "1.2.3+12.g0123abc.dirty",
		"0154032":                  "0.0.0-g0154032",
		"154ac032-dirty":           "0.0.0-g154ac032-dirty",
	} {
		o := options{version: version, out: t.TempDir()}
		if err := makeChart(o); err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(o.out, "headpond-chart-"+version+".tgz")
		if out, err := runProgram(t, "helm", "show", "chart", archive); err != nil || !strings.Contains(out, "\nversion: "+want+"\n") {
			t.Errorf("%s: want version %s, got %v\n%s", version, want, err, out)
		}
		if out, err := runProgram(t, "helm", "lint", "--strict", archive); err != nil {
			t.Errorf("%s: %v\n%s", version, err, out)
		}
		out, err := runProgram(t, "helm", "template", "headpond", archive, "--kube-version", "1.35", "--set-file", "config="+base+"/headpond.yaml")
		if image := "image: \"headpond:" + strings.TrimPrefix(version, "v") + "\"\n"; err != nil || !strings.Contains(out, image) {
			t.Errorf("%s: no %s: %v\n%s", version, image, err, out)
		}
	}
}
