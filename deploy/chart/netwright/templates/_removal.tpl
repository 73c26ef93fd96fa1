{{/* A pod that turns its node back to what it was, and is ready when that is done. */}}
{{- define "netwright.removal" -}}
# To know that no process is in a container's namespace any more.
hostPID: true
terminationGracePeriodSeconds: 5
initContainers:
  {{- if include "netwright.unlabels" . }}
  {{- include "netwright.unlabel" . | nindent 2 }}
  {{- end }}
  {{- include "netwright.remove" . | trim | nindent 2 }}
containers:
  {{- include "netwright.done" . | nindent 2 }}
volumes:
  - {name: run, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: state, emptyDir: {sizeLimit: 1Mi}}
  {{- if include "netwright.unlabels" . }}
  {{- include "netwright.configurationVolume" . | nindent 2 }}
  {{- include "netwright.tokenVolume" . | nindent 2 }}
  {{- end }}
  {{- include "netwright.removeVolumes" (dict "root" . "known" (dict "run" true "state" true)) | trim | nindent 2 }}
{{- end }}

{{/* The containers that turn a node back. No service that would restore something may run there. */}}
{{- define "netwright.remove" -}}
{{- if .Values.remove.open }}
# No policy is enforced on this node from now on.
- name: remove-policy
  image: {{ include "netwright.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/opt/netwright/netwrightd, policy, --uninstall, --open]
  env:
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  securityContext:
    readOnlyRootFilesystem: true
    # It removes what stands in containers' network namespaces too.
    capabilities: {drop: [ALL], add: [SYS_ADMIN, SYS_PTRACE, NET_ADMIN]}
    seccompProfile: {type: RuntimeDefault}
    seLinuxOptions: {type: spc_t}
    # The usual one forbids to enter namespaces.
    appArmorProfile: {type: Unconfined}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    {{- include "netwright.removeMounts" . | trim | nindent 4 }}
{{- end }}
# Its log says what it waits for.
- name: remove
  image: {{ include "netwright.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    - /opt/netwright/netwright
    - uninstall
    - --wait
    - --bin-dir={{ .Values.node.plugins }}
    {{- with .Values.config.multinet.conflist }}
    - --conflist={{ . }}
    {{- end }}
    {{- if (.Values.config.routing | default dict).enable }}
    {{- with .Values.config.routing.conflist }}
    - --routing-conflist={{ . }}
    {{- end }}
    {{- end }}
    {{- with .Values.remove.network }}
    - --next-network={{ . }}
    {{- end }}
  securityContext:
    readOnlyRootFilesystem: true
    # It runs once, and does all that plugins do when they detach, also to the node's sysctls.
    privileged: true
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    {{- include "netwright.removeMounts" . | trim | nindent 4 }}
{{- end }}

{{- define "netwright.removeMounts" -}}
{{- range include "netwright.toRemove" . | fromJsonArray }}
- {name: {{ include "netwright.volume" . }}, mountPath: {{ .at }}{{ with .propagation }}, mountPropagation: {{ . }}{{ end }}}
{{- end }}
{{- end }}

{{/* Their volumes, without those that are known. */}}
{{- define "netwright.removeVolumes" -}}
{{- $known := .known -}}
{{- range include "netwright.toRemove" .root | fromJsonArray }}
{{- $name := include "netwright.volume" . }}
{{- if not (hasKey $known $name) }}
{{- $_ := set $known $name true }}
- {name: {{ $name }}, hostPath: {path: {{ .host }}, type: DirectoryOrCreate}}
{{- end }}
{{- end }}
{{- end }}

{{/* A pod that only takes a node's labels, where the pod of `routing` turns the node back. */}}
{{- define "netwright.unlabelling" -}}
terminationGracePeriodSeconds: 5
initContainers:
  {{- include "netwright.unlabel" . | nindent 2 }}
containers:
  {{- include "netwright.done" . | nindent 2 }}
volumes:
  - {name: run, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: state, emptyDir: {sizeLimit: 1Mi}}
  {{- include "netwright.configurationVolume" . | nindent 2 }}
  {{- include "netwright.tokenVolume" . | nindent 2 }}
{{- end }}

{{- define "netwright.unlabel" -}}
# First, so that no pod is sent here for a network that the node is about to lose.
- name: unlabel
  image: {{ include "netwright.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/opt/netwright/netwrightd, multinet, --unlabel-node]
  env:
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  securityContext:
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: configuration, mountPath: /etc/netwright, readOnly: true}
    - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* Whether nodes have labels to lose. Without multinet the account may not write to Nodes. */}}
{{- define "netwright.unlabels" -}}
{{- $multinet := .Values.config.multinet -}}
{{- if and $multinet.enable (index $multinet "label-node") }}true{{ end -}}
{{- end }}

{{/* The mounts of the container that removes, as a JSON list. */}}
{{- define "netwright.toRemove" -}}
{{- $mounts := list (dict "host" .Values.node.plugins "at" .Values.node.plugins) -}}
{{- $mounts = append $mounts (dict "host" .Values.node.configurations "at" "/etc/cni/net.d") -}}
{{- range list "/run/netwright" "/run/cni" "/var/lib/netwright" "/var/lib/cni" -}}
{{- $mounts = append $mounts (dict "host" . "at" .) -}}
{{- end -}}
{{- range list "/run/netns" "/var/run/netns" -}}
{{- $mounts = append $mounts (dict "host" "/run/netns" "at" . "propagation" "HostToContainer") -}}
{{- end -}}
{{- $mounts = append $mounts (dict "host" "/run/k8s.cni.cncf.io" "at" "/var/run/k8s.cni.cncf.io") -}}
{{- $mounts | toJson -}}
{{- end }}

{{/* What makes an object one of helm uninstall, in this order. */}}
{{- define "netwright.hook" -}}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-weight: {{ . | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
