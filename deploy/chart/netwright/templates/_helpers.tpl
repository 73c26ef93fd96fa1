{{/* The image, with its tag. */}}
{{- define "netwright.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The services that have a container in the common DaemonSet, as a JSON list: ipam, policy and routing
have accounts of their own, and so DaemonSets of their own. */}}
{{- define "netwright.services" -}}
{{- $enabled := list -}}
{{- range $service, $_ := .Files.Get "files/rights.yaml" | fromYaml -}}
{{- $config := index $.Values.config $service | default dict -}}
{{- if and $config.enable (not (has $service (list "ipam" "policy" "routing"))) -}}
{{- $enabled = append $enabled $service -}}
{{- end -}}
{{- end -}}
{{- $enabled | toJson -}}
{{- end }}

{{/* Whether ipam keeps its records in the Kubernetes API. */}}
{{- define "netwright.recordsInApi" -}}
{{- if not (.Values.config.ipam | default dict).etcd }}true{{ end -}}
{{- end }}

{{/* What a service's container mounts, as a JSON list: what its rights let it write, and what it has
to read. `host` is the node's path, `volume` a volume that is no folder of the node. */}}
{{- define "netwright.mounts" -}}
{{- $root := .root -}}
{{- $service := .service -}}
{{- $values := $root.Values -}}
{{- $rights := index ($root.Files.Get "files/rights.yaml" | fromYaml) $service -}}
{{- $folder := dict "type" "DirectoryOrCreate" -}}
{{- $seen := dict "readOnly" true "type" "DirectoryOrCreate" -}}
{{- $mounts := list (dict "volume" "configuration" "at" "/etc/netwright" "readOnly" true) -}}
{{- range $rights.folders -}}
{{- $mounts = append $mounts (merge (dict "host" . "at" .) $folder) -}}
{{- end -}}
{{- if $rights.seesContainers -}}
{{- /* Also at the node's own path, which the record of the installation has. */ -}}
{{- $kept := index ($values.config.repair | default dict) "keep-plugins" | default list -}}
{{- $plugins := ternary $folder $seen (and (eq $service "repair") (has $values.node.plugins $kept)) -}}
{{- range list "/opt/cni/bin" $values.node.plugins | uniq -}}
{{- $mounts = append $mounts (merge (dict "host" $values.node.plugins "at" .) $plugins) -}}
{{- end -}}
{{- /* Runtimes name a namespace by either path; the image has no link from /var/run to /run. */ -}}
{{- range list "/run/netns" "/var/run/netns" -}}
{{- $mounts = append $mounts (merge (dict "host" "/run/netns" "at" . "propagation" "HostToContainer") $folder) -}}
{{- end -}}
{{- end -}}
{{- if has "/run/k8s.cni.cncf.io" $rights.folders -}}
{{- $mounts = append $mounts (merge (dict "host" "/run/k8s.cni.cncf.io" "at" "/var/run/k8s.cni.cncf.io") $folder) -}}
{{- end -}}
{{- if eq $service "multinet" -}}
{{- $mounts = append $mounts (merge (dict "host" $values.node.configurations "at" "/etc/cni/net.d") $folder) -}}
{{- $mounts = append $mounts (merge (dict "host" "/etc/cni/multus/net.d" "at" "/etc/cni/multus/net.d") $seen) -}}
{{- $mounts = append $mounts (merge (dict "host" $values.node.devices "at" "/var/lib/kubelet/device-plugins") $seen) -}}
{{- else if eq $service "collect" -}}
{{- $mounts = append $mounts (merge (dict "host" $values.node.configurations "at" "/etc/cni/net.d") $seen) -}}
{{- else if eq $service "routing" -}}
{{- $routing := $values.config.routing -}}
{{- /* A container's own /proc/sys is read-only. */ -}}
{{- $mounts = append $mounts (dict "host" "/proc/sys/net" "at" "/host/proc/sys/net" "type" "Directory") -}}
{{- if $routing.conflist -}}
{{- $mounts = append $mounts (merge (dict "host" $values.node.configurations "at" "/etc/cni/net.d") $folder) -}}
{{- end -}}
{{- if eq (toString $routing.flannel) "replace" -}}
{{- $mounts = append $mounts (merge (dict "host" "/run/flannel" "at" "/run/flannel") $folder) -}}
{{- end -}}
{{- else if eq $service "ipam" -}}
{{- $mounts = append $mounts (dict "host" "/etc/machine-id" "at" "/etc/machine-id" "readOnly" true "type" "File") -}}
{{- end -}}
{{- $asks := or (has $service (list "multinet" "routing")) (and (eq $service "ipam") (include "netwright.recordsInApi" $root)) -}}
{{- if or $asks (and (eq $service "policy") (eq (toString $values.config.policy.source) "kubernetes")) -}}
{{- $mounts = append $mounts (dict "volume" "token" "at" "/var/run/secrets/kubernetes.io/serviceaccount" "readOnly" true) -}}
{{- end -}}
{{- if $values.tun -}}
{{- range $rights.devices -}}
{{- $mounts = append $mounts (dict "host" . "at" . "type" "CharDevice") -}}
{{- end -}}
{{- end -}}
{{- range index $values.mounts $service -}}
{{- $mounts = append $mounts (dict "host" . "at" . "type" "Directory") -}}
{{- end -}}
{{- if index $values.secrets $service -}}
{{- $mounts = append $mounts (dict "volume" (printf "secret-%s" $service) "secret" (index $values.secrets $service) "at" "/etc/netwright-secret" "readOnly" true) -}}
{{- end -}}
{{- $mounts | toJson -}}
{{- end }}

{{/* The name of a mount's volume. */}}
{{- define "netwright.volume" -}}
{{- if .volume }}{{ .volume }}{{ else }}{{ .host | trimPrefix "/" | lower | replace "/" "-" | replace "." "-" | trunc 63 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{/* A service's container. */}}
{{- define "netwright.container" -}}
{{- $root := .root -}}
{{- $service := .service -}}
{{- $rights := index ($root.Files.Get "files/rights.yaml" | fromYaml) $service -}}
- name: {{ $service }}
  image: {{ include "netwright.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  # It gives up what of its container's rights it does not need, and follows its configuration.
  command: [/opt/netwright/netwrightd, {{ $service }}, --confine, --follow]
  env:
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    {{- if eq $service "routing" }}
    - {name: NETWRIGHT_SYSCTL_DIR, value: /host/proc/sys}
    {{- end }}
  securityContext:
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]{{ with $rights.capabilities }}, add: [{{ join ", " . }}]{{ end }}}
    {{- if not (has "SYS_ADMIN" $rights.capabilities) }}
    allowPrivilegeEscalation: false
    {{- end }}
    seccompProfile: {type: RuntimeDefault}
    # It writes to folders of the node.
    seLinuxOptions: {type: spc_t}
    {{- if $rights.seesContainers }}
    # The usual one forbids to enter namespaces and to set sysctls in them.
    appArmorProfile: {type: Unconfined}
    {{- end }}
  readinessProbe:
    exec: {command: [/opt/netwright/netwrightd, agent, status, {{ $service }}]}
    periodSeconds: 10
    timeoutSeconds: 5
  livenessProbe:
    exec: {command: [/opt/netwright/netwrightd, agent, status, --live, {{ $service }}]}
    initialDelaySeconds: 30
    periodSeconds: 30
    timeoutSeconds: 10
  resources:
    {{- $usual := dict "requests" (dict "cpu" "10m" "memory" (ternary "32Mi" "24Mi" (has $service (list "multinet" "policy")))) "limits" (dict "memory" (ternary "256Mi" "64Mi" (eq $service "policy"))) }}
    {{- index $root.Values.resources $service | default $usual | toYaml | nindent 4 }}
  volumeMounts:
    {{- range include "netwright.mounts" . | fromJsonArray }}
    - {name: {{ include "netwright.volume" . }}, mountPath: {{ .at }}
      {{- with .readOnly }}, readOnly: true{{ end }}
      {{- with .propagation }}, mountPropagation: {{ . }}{{ end }}}
    {{- end }}
{{- end }}

{{/* The volumes of services' containers, each once. */}}
{{- define "netwright.volumes" -}}
{{- $known := .known | default dict -}}
{{- range $service := .services -}}
{{- range include "netwright.mounts" (dict "root" $.root "service" $service) | fromJsonArray -}}
{{- $name := include "netwright.volume" . -}}
{{- if not (hasKey $known $name) -}}
{{- $_ := set $known $name true }}
{{- if .host }}
- {name: {{ $name }}, hostPath: {path: {{ .host }}, type: {{ .type }}}}
{{- else if .secret }}
- {name: {{ $name }}, secret: {secretName: {{ .secret }}, defaultMode: 256}}
{{- else if eq $name "configuration" }}
{{ include "netwright.configurationVolume" . }}
{{- else }}
{{ include "netwright.tokenVolume" . }}
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "netwright.configurationVolume" -}}
# Projected: only root can write to the folder of such a volume.
- name: configuration
  projected:
    sources:
      - configMap: {name: netwright}
{{- end }}

{{- define "netwright.tokenVolume" -}}
# As a kubelet mounts it, but only where it is needed.
- name: token
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* What all pods have: they run before there is any network, and whatever the node's taints are. */}}
{{- define "netwright.pod" -}}
automountServiceAccountToken: false
hostNetwork: true
dnsPolicy: Default
priorityClassName: system-node-critical
nodeSelector: {kubernetes.io/os: linux}
tolerations:
  - operator: Exists
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end }}

{{/* Puts the plugins into the node's folder, each by a rename, so that a running one is not disturbed.
It writes no network of its own: the cluster has one, or routing writes it. It records the folder by
the node's path, so that what another package does there is noticed on the node and in containers. */}}
{{- define "netwright.install" -}}
- name: install
  image: {{ include "netwright.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/opt/netwright/netwright, install, --no-config, --allow-downgrade, --bin-dir, {{ .Values.node.plugins }}]
  securityContext:
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL], add: [DAC_OVERRIDE, FOWNER]}
    seccompProfile: {type: RuntimeDefault}
    seLinuxOptions: {type: spc_t}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: {{ include "netwright.volume" (dict "host" .Values.node.plugins) }}, mountPath: {{ .Values.node.plugins }}}
    - {name: var-lib-netwright-installed, mountPath: /var/lib/netwright/installed}
{{- end }}

{{/* The volumes of the installer. */}}
{{- define "netwright.installVolumes" -}}
- {name: {{ include "netwright.volume" (dict "host" .Values.node.plugins) }}, hostPath: {path: {{ .Values.node.plugins }}, type: DirectoryOrCreate}}
- {name: var-lib-netwright-installed, hostPath: {path: /var/lib/netwright/installed, type: DirectoryOrCreate}}
{{- end }}

{{/* Starts no service: its pod is ready as soon as the containers before it are done. */}}
{{- define "netwright.done" -}}
- name: done
  image: {{ include "netwright.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/opt/netwright/netwrightd]
  securityContext:
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  readinessProbe:
    exec: {command: [/opt/netwright/netwrightd, agent, status]}
    periodSeconds: 10
    timeoutSeconds: 5
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: run, mountPath: /run/netwright}
    - {name: state, mountPath: /var/lib/netwright}
{{- end }}
