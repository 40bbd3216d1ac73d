package integration

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

// manifests decodes every object of the manifests below deploy/kubernetes, by "Kind/name", as strictly as an API server does for
// kubectl. Those of kustomize and of the Prometheus operator have no types here.
func manifests(t *testing.T) map[string]any {
	t.Helper()
	objects := map[string]any{}
	err := filepath.WalkDir("../deploy/kubernetes", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "headpond.yaml" {
			return err
		}
		reader := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(readFile(t, name))))
		for {
			text, err := reader.Read()
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if object, key := decodeManifest(t, name, text); object != nil {
				objects[key] = object
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// decodeManifest decodes one object of a file, nil if its kind has no type here.
func decodeManifest(t *testing.T, name string, text []byte) (object any, key string) {
	t.Helper()
	var head struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
	}
	if err := strict.Unmarshal(text, &head); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	switch head.APIVersion + " " + head.Kind {
	case "v1 Namespace":
		object = &corev1.Namespace{}
	case "v1 Service":
		object = &corev1.Service{}
	case "v1 ServiceAccount":
		object = &corev1.ServiceAccount{}
	case "apps/v1 Deployment":
		object = &appsv1.Deployment{}
	case "policy/v1 PodDisruptionBudget":
		object = &policyv1.PodDisruptionBudget{}
	case "networking.k8s.io/v1 NetworkPolicy":
		object = &networkingv1.NetworkPolicy{}
	case "rbac.authorization.k8s.io/v1 Role":
		object = &rbacv1.Role{}
	case "rbac.authorization.k8s.io/v1 RoleBinding":
		object = &rbacv1.RoleBinding{}
	case "kustomize.config.k8s.io/v1beta1 Kustomization", "monitoring.coreos.com/v1 ServiceMonitor":
		return nil, ""
	default:
		t.Fatalf("%s: what is %s %s?", name, head.APIVersion, head.Kind)
	}
	if err := strict.UnmarshalStrict(text, object); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return object, head.Kind + "/" + head.Metadata.Name
}

// TestManifests: the pods of deploy/kubernetes/gateway end later than their sessions, pass the "restricted" policy, are what Services
// select, and have a configuration that check accepts.
func TestManifests(t *testing.T) {
	objects := manifests(t)
	deployment, ok := objects["Deployment/headpond"].(*appsv1.Deployment)
	if !ok {
		t.Fatalf("no Deployment among %d objects", len(objects))
	}
	pod := deployment.Spec.Template.Spec
	c := pod.Containers[0]
	text := readFile(t, "../deploy/kubernetes/gateway/headpond.yaml")
	drain, err := time.ParseDuration(regexp.MustCompile(`drain_timeout: (\S+)`).FindStringSubmatch(text)[1])
	if err != nil {
		t.Fatal(err)
	}
	if ends := time.Duration(c.Lifecycle.PreStop.Sleep.Seconds)*time.Second + drain; time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second <= ends {
		t.Errorf("the pod is killed after %d s, its sessions end after %v", *pod.TerminationGracePeriodSeconds, ends)
	}
	if c.LivenessProbe.HTTPGet.Path != "/livez" || c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.TimeoutSeconds < 6 {
		t.Errorf("probes: %+v, %+v", c.LivenessProbe, c.ReadinessProbe)
	}
	s := c.SecurityContext
	if !*pod.SecurityContext.RunAsNonRoot || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" {
		t.Errorf("not restricted: %+v, %+v", pod.SecurityContext, s)
	}
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	labels := deployment.Spec.Template.Labels
	for key, object := range objects {
		service, ok := object.(*corev1.Service)
		if !ok {
			continue
		}
		for name, value := range service.Spec.Selector {
			if labels[name] != value {
				t.Errorf("%s selects no pod: %s", key, name)
			}
		}
		for _, p := range service.Spec.Ports {
			if ports[p.TargetPort.StrVal] == 0 {
				t.Errorf("%s: no port %s", key, p.TargetPort.StrVal)
			}
		}
	}
	checkDeployed(t, text, c.VolumeMounts)
}

// checkDeployed checks a configuration with the Secret's files in a folder of this machine.
func checkDeployed(t *testing.T, text string, mounts []corev1.VolumeMount) {
	t.Helper()
	dir := t.TempDir()
	for _, m := range mounts {
		if m.SubPath != "" {
			t.Errorf("%s: a file mounted by subPath never changes", m.MountPath)
		}
		if m.Name == "secrets" {
			text = strings.ReplaceAll(text, m.MountPath+"/", dir+"/")
		}
	}
	for name, content := range map[string]string{"headpond.yaml": text, "users.txt": "\"alice\" \"secret\"\n", "app.password": "secret\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, code := run(t, patience, built(t, plainBinary), "check", filepath.Join(dir, "headpond.yaml")); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// TestInstalledService verifies the unit with systemd, if that is installed, and the configuration that packages install.
func TestInstalledService(t *testing.T) {
	if out, code := run(t, patience, built(t, plainBinary), "check", "../packaging/headpond.yaml"); code != 0 || strings.Contains(out, "warning") {
		t.Errorf("exit %d\n%s", code, out)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("no systemd here: the unit was not verified")
		return
	}
	program, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "headpond.service")
	text := strings.ReplaceAll(readFile(t, "../examples/headpond.service"), "/usr/bin/headpond", program)
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
