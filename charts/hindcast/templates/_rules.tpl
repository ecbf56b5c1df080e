{{- /* What the operator may do: in each namespace it serves, or everywhere. Every line has its use. */}}
{{- define "hindcast.rules" -}}
# The resources: read; their status: written; never the resource itself.
- apiGroups: [hindcast.dev]
  resources: [offlinerecordings, offlinetrainings]
  verbs: [get, list, watch]
- apiGroups: [hindcast.dev]
  resources: [offlinerecordings/status, offlinetrainings/status]
  verbs: [patch]
# Owning a child that blocks its owner's deletion, where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [hindcast.dev]
  resources: [offlinerecordings/finalizers, offlinetrainings/finalizers]
  verbs: [update]
# An attempt: its RayJob is made once and deleted; only its deadlines follow a change of the spec.
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, watch]
# An attempt's ConfigMap: the resource, the report, the intent. The run's own token gets `get` and `patch` of it,
# which the operator can only give because it has them.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
# Why an attempt does not start, or died.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}
