{{- define "headpond.name" -}}
{{- $name := .Release.Name }}
{{- if not (contains "headpond" $name) }}{{ $name = print $name "-headpond" }}{{ end }}
{{- .Values.fullnameOverride | default $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "headpond.selector" -}}
app.kubernetes.io/name: headpond
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headpond.labels" -}}
{{ include "headpond.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The configuration as an object. Only what the manifests depend on is looked at here: the Job "check" checks the rest. */}}
{{- define "headpond.config" -}}
{{- $config := fromYaml (required "config is required: --set-file config=headpond.yaml" .Values.config) }}
{{- with $config.Error }}{{ fail (print "config is not YAML: " .) }}{{ end }}
{{- if regexMatch "^(|unix:.*|(127\\..*|localhost|\\[::1\\]):[0-9]+)$" ($config.admin | default "") }}
{{- fail "config: admin must be an address that the kubelet and Prometheus reach, such as admin: 0.0.0.0:9090" }}
{{- end }}
{{- toJson $config }}
{{- end }}

{{- define "headpond.adminPort" -}}
{{- regexFind "[0-9]+$" ((include "headpond.config" . | fromJson).admin | default "") }}
{{- end }}

{{/* The ports of the listeners that can be reached from outside of the pod: [{listener, name, port, protocol}]. */}}
{{- define "headpond.ports" -}}
{{- $ports := list }}
{{- range (include "headpond.config" . | fromJson).listeners }}
{{- if not (regexMatch "^(unix:.*|(127\\..*|localhost|\\[::1\\]):[0-9]+)$" .listen) }}
{{- $port := regexFind "[0-9]+$" .listen | int }}
{{- $name := regexReplaceAll "[^a-z0-9]+" (lower .name) "-" | trunc 15 | trimAll "-" }}
{{- $ports = append $ports (dict "listener" .name "name" $name "port" $port "protocol" (ternary "UDP" "TCP" (eq .protocol "udp"))) }}
{{- $http3 := (.http | default dict).http3 }}
{{- if and $http3 (or (not (kindIs "map" $http3)) (ne (toString $http3.enabled) "false")) }}
{{- $ports = append $ports (dict "listener" .name "name" (print (trunc 12 $name | trimSuffix "-") "-h3") "port" $port "protocol" "UDP") }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $ports }}
{{- end }}

{{/* The seconds of a duration such as 1h, 2m30s or 500ms, rounded up. */}}
{{- define "headpond.seconds" -}}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(ms|us|µs|ns|h|m|s)" . -1 }}
{{- $unit := regexFind "[a-zµ]+$" . }}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get (dict "h" 3600 "m" 60 "s" 1 "ms" 0.001) $unit | default 0)) }}
{{- end }}
{{- ceil $sum | int }}
{{- end }}

{{/* How long the kubelet waits for the end of a pod: longer than its sessions may take. */}}
{{- define "headpond.gracePeriod" -}}
{{- $drain := (include "headpond.config" . | fromJson).drain_timeout | default "30s" }}
{{- $given := .Values.terminationGracePeriodSeconds }}
{{- if eq $drain "never" }}
{{- required "config: drain_timeout: never needs terminationGracePeriodSeconds" $given | int64 }}
{{- else }}
{{- $ends := add .Values.preStopSeconds (include "headpond.seconds" $drain) }}
{{- if and $given (le (int64 $given) $ends) }}
{{- fail (printf "terminationGracePeriodSeconds: %v: the sessions of a pod end after preStopSeconds and drain_timeout, %d s" $given $ends) }}
{{- end }}
{{- $given | default (add $ends 10) | int64 }}
{{- end }}
{{- end }}

{{/* A tenth below the limit of memory. */}}
{{- define "headpond.memory" -}}
{{- with (.Values.resources.limits | default dict).memory }}
{{- $unit := regexFind "[A-Za-z]+$" . }}
{{- printf "%dMiB" (mulf 0.9 (trimSuffix $unit . | float64) (get (dict "Mi" 1 "Gi" 1024 "M" 0.953 "G" 953) $unit) | floor | int) }}
{{- end }}
{{- end }}

{{- define "headpond.serviceAccount" -}}
{{- .Values.serviceAccount | default (ternary (include "headpond.name" .) "" (not (empty .Values.discoverNamespaces))) }}
{{- end }}

{{/* What pods and the Job "check" have in common. */}}
{{- define "headpond.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "headpond.container" -}}
image: "{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  {{- with include "headpond.memory" . }}
  - {name: GOMEMLIMIT, value: {{ . }}}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
# Whole folders: a file mounted by subPath never changes.
volumeMounts:
  - {name: config, mountPath: /etc/headpond, readOnly: true}
  {{- if .Values.secret }}
  - {name: secrets, mountPath: /etc/headpond-secrets, readOnly: true}
  {{- end }}
  - {name: state, mountPath: /var/lib/headpond}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The volumes: takes a list of the chart's context, the name of the ConfigMap, and a claim for the state, or "". */}}
{{- define "headpond.volumes" -}}
- name: config
  configMap: {name: {{ index . 1 }}}
{{- with (index . 0).Values.secret }}
- name: secrets
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
- name: state
  {{- with index . 2 }}
  persistentVolumeClaim: {claimName: {{ . }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- with (index . 0).Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
