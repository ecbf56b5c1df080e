{{- /* The operator's rights: in each namespace that it serves, or in all namespaces. It needs every line. */}}
{{- define "hindcast.rules" -}}
# Read the resources and write their status. The operator never writes a resource itself.
- apiGroups: [hindcast.dev]
  resources: [offlinerecordings, offlinetrainings]
  verbs: [get, list, watch]
- apiGroups: [hindcast.dev]
  resources: [offlinerecordings/status, offlinetrainings/status]
  verbs: [patch]
# Required by the admission plugin OwnerReferencesPermissionEnforcement to create children with blockOwnerDeletion.
- apiGroups: [hindcast.dev]
  resources: [offlinerecordings/finalizers, offlinetrainings/finalizers]
  verbs: [update]
# Create, watch and delete the RayJob of an attempt. Only its deadlines are patched when the spec changes.
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, watch]
# The ConfigMap of an attempt, with the resource, the report and the intent. The run's own Role permits `get` and `patch`
# of it; the operator can grant only rights that it has itself.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
# Read pods and events to explain why an attempt does not start or was lost.
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
