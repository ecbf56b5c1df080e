-- Health of an OfflineRecording or OfflineTraining for Argo CD. Healthy means: it runs, or it is done.
local health = {status = "Progressing", message = "The operator has not seen this generation yet"}
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end
local holds, ready = {}, nil
for _, condition in ipairs(status.conditions or {}) do
  holds[condition.type] = condition.status == "True"
  if condition.type == "Ready" then
    ready = condition
  end
end
if ready == nil then
  return health
end
health.message = ready.reason .. ": " .. (status.message or ready.message)
if holds.Stalled then
  health.status = "Degraded"
elseif holds.Reconciling then
  health.status = "Progressing"
elseif holds.Suspended then
  health.status = "Suspended"
elseif holds.Ready then
  health.status = "Healthy"
end
return health
