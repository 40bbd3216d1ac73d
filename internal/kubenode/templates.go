package kubenode

import (
	"net"
	"net/netip"
	"text/template"
)

// drainSeconds is how long a node's gateway drains. Watches never end by themselves, so most of this time is the
// stagger. A static pod is replaced only once it has ended, and the kubelet looks again only after 10 to 15 seconds:
// nothing serves the node meanwhile, so a pod must have ended by then.
const (
	drainSeconds    = 10
	drainSecondsPod = 3
)

var functions = template.FuncMap{"quote": quote}

// configTemplate is the gateway's configuration.
const configTemplate = `# Made by "headpond kube": the API servers, for the clients on this node.
admin: {{quote .Admin}}
drain_timeout: {{.Drain}}s
listeners:
  - name: kubernetes
    protocol: tcp
    listen: {{quote .Listen}}
    upstream: apiservers
upstreams:
  apiservers:
{{- if .Follows}}
    discover:
      kubernetes:
        server: {{printf "https://%s" .Listen | quote}} # through this gateway
{{- if .ServerName}}
        server_name: {{quote .ServerName}}
{{- end}}
        ca: {{quote .CA}}
{{- if .Kubeconfig}}
        kubeconfig: {{quote .Kubeconfig}}
{{- else if .TokenFile}}
        token_file: {{quote .TokenFile}}
{{- else}}
        cert: {{quote .Cert}}
        key: {{quote .Key}}
{{- end}}
        cache: {{printf "%s/apiservers.json" .State | quote}}
        bootstrap: {{quote .Servers}}
{{- else}}
    endpoints: {{quote .Servers}}
{{- end}}
    health:
      https: /readyz
      ca: {{quote .CA}}
{{- if .ServerName}}
      server_name: {{quote .ServerName}}
{{- end}}
      expect: [200, 401] # 401: the server works, and has no anonymous requests
      interval: 1s
      timeout: 1s
      fall: 2
    rebalance: {}
`

// unitTemplate is a systemd unit. Root without capabilities can read root's files, such as kubeconfigs, and little
// else.
const unitTemplate = `# Made by "headpond kube".
[Unit]
Description=Headpond, the way to the Kubernetes API servers
Documentation=https://github.com/headpond/headpond
Wants=network-online.target
After=network-online.target
Before=kubelet.service k3s-agent.service rke2-agent.service snap.k8s.kubelet.service snap.k8s.kube-proxy.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStartPre={{.Program}} check {{.Config}}
ExecStart={{.Program}} serve {{.Config}}
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=1
WatchdogSec=30
TimeoutStopSec={{.Stop}}
LimitNOFILE=65536
OOMScoreAdjust=-900
CapabilityBoundingSet=
NoNewPrivileges=true
ProtectSystem=strict
StateDirectory={{.StateName}}
StateDirectoryMode=0700
ProtectHome=true
PrivateTmp=true
PrivateDevices=true

[Install]
WantedBy=multi-user.target
`

// podTemplate is a static pod.
const podTemplate = `# Made by "headpond kube". The kubelet runs it without asking an API server.
apiVersion: v1
kind: Pod
metadata:
  name: headpond
  namespace: kube-system
  labels:
    app.kubernetes.io/name: headpond
spec:
  hostNetwork: true
  dnsPolicy: Default
  priorityClassName: system-node-critical
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{.Stop}}
  securityContext:
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: headpond
      image: {{quote .Image}}
      command: [{{quote .Program}}, "serve", {{quote .Config}}]
      securityContext:
        runAsUser: 0
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: ["ALL"]
      resources:
        requests:
          cpu: 50m
          memory: 32Mi
      livenessProbe:
        httpGet:
          host: {{quote .AdminHost}}
          port: {{.Port}}
          path: /livez
        periodSeconds: 5
        timeoutSeconds: 6
        failureThreshold: 3
        # Clients are without it for half a minute at most: a gateway that hangs does not drain.
        terminationGracePeriodSeconds: 5
      volumeMounts:
{{- range .Mounts}}
        - name: {{.Name}}
          mountPath: {{quote .Path}}
          readOnly: {{not .Write}}
{{- end}}
  volumes:
{{- range .Mounts}}
    - name: {{.Name}}
      hostPath:
        path: {{quote .Path}}
        type: {{.Type}}
{{- end}}
`

// splitAdmin returns the host and port of the admin page for probes.
func splitAdmin(address string) (host, port string) {
	host, port, _ = net.SplitHostPort(address) // the address was checked
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return host, port
}
