//go:build kube

package integration

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	strict "sigs.k8s.io/yaml"
)

// manifestPaths are the folders of the API for what the chart makes. The ServiceMonitor's is not among them: only an operator has it, so
// packaging compares that object with the base's.
var manifestPaths = map[string]string{
	"ConfigMap":           "/api/v1/namespaces/NS/configmaps/",
	"DaemonSet":           "/apis/apps/v1/namespaces/NS/daemonsets/",
	"Deployment":          "/apis/apps/v1/namespaces/NS/deployments/",
	"Job":                 "/apis/batch/v1/namespaces/NS/jobs/",
	"NetworkPolicy":       "/apis/networking.k8s.io/v1/namespaces/NS/networkpolicies/",
	"Pod":                 "/api/v1/namespaces/NS/pods/",
	"PodDisruptionBudget": "/apis/policy/v1/namespaces/NS/poddisruptionbudgets/",
	"Role":                "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/roles/",
	"RoleBinding":         "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/rolebindings/",
	"Service":             "/api/v1/namespaces/NS/services/",
	"ServiceAccount":      "/api/v1/namespaces/NS/serviceaccounts/",
}

// chartObject is a manifest, as far as this test looks at it.
type chartObject struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct{ Template map[string]any }
}

// dryRun has a server admit a manifest as `kubectl apply --server-side --dry-run=server` does.
func (c *kubeCluster) dryRun(client *http.Client, name, manifest string) {
	c.t.Helper()
	var o chartObject
	if err := strict.Unmarshal([]byte(manifest), &o); err != nil {
		c.t.Fatal(err)
	}
	if o.Kind == "" || o.Kind == "ServiceMonitor" {
		return
	}
	folder := strings.Replace(manifestPaths[o.Kind], "NS", o.Metadata.Namespace, 1)
	if folder == "" {
		c.t.Fatalf("%s: what is a %s?", name, o.Kind)
	}
	query := "?dryRun=All&fieldManager=test&fieldValidation=Strict"
	if _, err := c.request(client, http.MethodPatch, folder+o.Metadata.Name+query, "application/apply-patch+yaml", []byte(manifest)); err != nil {
		c.t.Errorf("%s: %v\n%s", name, err, manifest)
	}
	if o.Spec.Template == nil {
		return
	}
	// Controllers make pods later, and nobody sees these refused.
	pod := o.Spec.Template
	pod["apiVersion"], pod["kind"] = "v1", "Pod"
	metadata := pod["metadata"].(map[string]any)
	metadata["name"], metadata["namespace"] = o.Metadata.Name, o.Metadata.Namespace
	text, err := strict.Marshal(pod)
	if err != nil {
		c.t.Fatal(err)
	}
	c.dryRun(client, name+", the pod of "+o.Kind, string(text))
}

// TestKubeChart: an API server admits all that the Helm chart makes, and its pods in a namespace that enforces the restricted policy.
func TestKubeChart(t *testing.T) {
	const chart = "../deploy/helm/headpond"
	c := startKube(t)
	client := c.client(c.servers[0].address())
	defer client.CloseIdleConnections()
	c.apply(client, "/api/v1/namespaces/headpond", "apiVersion: v1\nkind: Namespace\nmetadata: {name: headpond, labels: {pod-security.kubernetes.io/enforce: restricted}}\n")
	c.apply(client, "/api/v1/namespaces/prod", "apiVersion: v1\nkind: Namespace\nmetadata: {name: prod}\n")
	for _, account := range []string{"default", "gate"} { // pods are admitted with one that exists
		c.apply(client, "/api/v1/namespaces/headpond/serviceaccounts/"+account, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: "+account+"}\n")
	}
	all, err := filepath.Glob(chart + "/ci/*-values.yaml")
	if err != nil || len(all) == 0 {
		t.Fatalf("no values: %v", err)
	}
	for _, values := range all {
		cmd := exec.Command(os.Getenv("HEADPOND_HELM"), "template", "headpond", chart, "-n", "headpond", "--kube-version", "1.35", "-f", values)
		if name := filepath.Base(values); name == "base-values.yaml" {
			cmd.Args = append(cmd.Args, "--set-file", "config=../deploy/kubernetes/gateway/headpond.yaml")
		}
		var problems bytes.Buffer
		cmd.Stderr = &problems
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", values, err, problems.String())
		}
		for manifest := range strings.SplitSeq("\n"+string(out), "\n---\n") {
			c.dryRun(client, filepath.Base(values), manifest+"\n")
		}
	}
}
