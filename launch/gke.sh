#!/usr/bin/env bash
# A run on a TPU slice of a GKE cluster: a JobSet for the trainer, and if asked for a fleet of sandbox
# pods (Deployment, headless Service, NetworkPolicy, autoscaler) on CPU nodes.
#
#   launch/gke.sh start  --name=N --accelerator=v6e-8 --project=P --zone=Z --cluster=C \
#       --image=IMAGE --bucket=gs://B/PREFIX -- --gin_file=gin/runs/a1_1_5b.gin [--gin.NAME=VALUE ...]
#   launch/gke.sh status --name=N --project=P --zone=Z --cluster=C     JobSet and pods
#   launch/gke.sh log    --name=N --project=P --zone=Z --cluster=C     the run's output, as it comes
#   launch/gke.sh stop   --name=N --project=P --zone=Z --cluster=C     saves and stops; `start` continues
#   launch/gke.sh delete --name=N --project=P --zone=Z --cluster=C [--own-node-pool] [--sandbox=fleet]
#
# The cluster needs the JobSet controller and the Cloud Storage FUSE driver, and --service-account
# access to the bucket (Workload Identity). IMAGE is made by launch/Dockerfile. The run folder is
# gs://B/PREFIX/N: a pod that was evicted, preempted or drained is made anew and continues the run;
# a configuration that cannot run (exit code 2) is not tried again.
#
#   --location=L              of the cluster, if it is not the zone (a region)
#   --namespace=NS            default: default
#   --service-account=SA      Kubernetes service account of the trainer (default: default)
#   --own-node-pool           makes a node pool of this slice for the run; `delete` removes it
#   --spot                    spot capacity
#   --sandbox=local|fleet     beside the trainer on the TPU hosts' CPUs (default), or a fleet of pods
#   --sandbox-image=IMAGE     of the fleet, made by sandbox_service/deploy/Dockerfile
#   --allow-multi-host        slices of several hosts (see docs/launch.md)
#   --skip-plan               start without compiling the run for the slice first (codea1 plan)
#   --dry-run                 print every command and manifest instead of using it
#
# untested on hardware
set -euo pipefail
# shellcheck source=launch/cloud.sh
source "$(dirname "${BASH_SOURCE[0]}")/cloud.sh"

FLEET=codea1-sandbox # namespace, Deployment, Service and secret of sandbox_service/deploy

k() { run kubectl "--context=$CONTEXT" "$@"; }

# A YAML string.
yaml() { printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g;s/"/\\"/g')"; }

trainer_manifest() {
  local argument
  cat <<EOF
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $NAME
  namespace: $NAMESPACE
  labels: {app: codea1}
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  suspend: false
  failurePolicy:
    maxRestarts: 1000
    rules:
      - name: cannot_run
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: trainer
      replicas: 1
      template:
        spec:
          parallelism: $HOSTS
          completions: $HOSTS
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes: {containerName: trainer, operator: In, values: [2]}
          template:
            metadata:
              labels: {app: codea1, codea1-run: $NAME, codea1-sandbox-client: "true"}
              annotations: {gke-gcsfuse/volumes: "true"}
            spec:
              serviceAccountName: ${OPTION[service-account]:-default}
              restartPolicy: Never
              # To the next safe point of a step; spot nodes give less, whatever is asked for.
              terminationGracePeriodSeconds: 1800
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $NODE_LABEL
                cloud.google.com/gke-tpu-topology: $TOPOLOGY
EOF
  if given spot; then
    echo '                cloud.google.com/gke-spot: "true"'
  fi
  cat <<EOF
              containers:
                - name: trainer
                  image: ${OPTION[image]}
                  args:
                    - bash
                    - /opt/codea1/launch/worker.sh
                    - train
                    - $(yaml "--bucket=${OPTION[bucket]}")
                    - --name=$NAME
                    - --
EOF
  for argument in "${TRAIN[@]}"; do
    printf '                    - %s\n' "$(yaml "$argument")"
  done
  cat <<EOF
                  env:
                    - {name: CODEA1_MOUNT, value: /bucket}
                  envFrom:
                    - {secretRef: {name: codea1-env, optional: true}}
                  resources:
                    requests: {google.com/tpu: $((CHIPS / HOSTS))}
                    limits: {google.com/tpu: $((CHIPS / HOSTS))}
                  volumeMounts:
                    - {name: bucket, mountPath: /bucket}
EOF
  if [ "$SANDBOX" = fleet ]; then
    echo '                    - {name: sandbox, mountPath: /etc/codea1-sandbox, readOnly: true}'
  fi
  cat <<EOF
              volumes:
                - name: bucket
                  csi:
                    driver: gcsfuse.csi.storage.gke.io
                    volumeAttributes:
                      bucketName: $BUCKET
                      mountOptions: implicit-dirs,rename-dir-limit=100000
EOF
  if [ "$SANDBOX" = fleet ]; then
    cat <<EOF
                - name: sandbox
                  secret: {secretName: $FLEET-client, defaultMode: 288}
EOF
  fi
}

fleet_manifest() {
  sed "s|image: REGISTRY/codea1-sandbox:[^ ]*|image: ${OPTION[sandbox-image]}|;/^#/d" \
    "$ROOT/sandbox_service/deploy/kubernetes.yaml"
}

start_fleet() {
  require "namespace $FLEET is missing: kubectl create namespace $FLEET" \
    kubectl "--context=$CONTEXT" get namespace "$FLEET"
  require "secret $FLEET with tls.crt, tls.key and tokens is missing in namespace $FLEET (sandbox_service/README.md)" \
    kubectl "--context=$CONTEXT" --namespace=$FLEET get secret $FLEET
  require "secret $FLEET-client with ca.crt and token is missing in namespace $NAMESPACE (docs/launch.md)" \
    kubectl "--context=$CONTEXT" "--namespace=$NAMESPACE" get secret $FLEET-client
  feed "$(fleet_manifest)" kubectl "--context=$CONTEXT" --namespace=$FLEET apply --filename=-
  k --namespace=$FLEET wait --for=condition=Available deployment/$FLEET --timeout=600s
}

create_node_pool() {
  local command=(gcloud container node-pools create "$NAME" "--cluster=${OPTION[cluster]}"
    "--project=${OPTION[project]}" "--location=$LOCATION" "--node-locations=${OPTION[zone]}"
    "--machine-type=$MACHINE" "--num-nodes=$HOSTS")
  # A slice of one host is a pool of one node; only slices of several hosts have a topology to name.
  if [ "$HOSTS" -gt 1 ]; then command+=("--tpu-topology=$TOPOLOGY"); fi
  if given spot; then command+=(--spot); fi
  run "${command[@]}"
}

start() {
  require_options accelerator bucket image
  check_accelerator
  check_bucket
  check_train
  check_hosts "$HOSTS"
  check_value image "$IMAGE_NAME" "the name of an image"
  check_value sandbox-image "$IMAGE_NAME" "the name of an image"
  if [ "$SANDBOX" = fleet ]; then
    require_options sandbox-image
    TRAIN+=("--gin.SandboxConfig.address='dns:///$FLEET.$FLEET:50061'"
      "--gin.SandboxConfig.ca_file='/etc/codea1-sandbox/ca.crt'"
      "--gin.SandboxConfig.token_file='/etc/codea1-sandbox/token'")
  fi
  require "there is no cluster ${OPTION[cluster]} in $LOCATION of ${OPTION[project]}, or you may not see it" \
    gcloud container clusters describe "${OPTION[cluster]}" "--project=${OPTION[project]}" "--location=$LOCATION" "--format=value(name)"
  require_bucket
  credentials
  require "the JobSet controller is not installed in ${OPTION[cluster]} (its home: sigs.k8s.io/jobset)" \
    kubectl "--context=$CONTEXT" get crd jobsets.jobset.x-k8s.io
  require "you may not create jobsets in namespace $NAMESPACE" \
    kubectl "--context=$CONTEXT" auth can-i create jobsets.jobset.x-k8s.io "--namespace=$NAMESPACE"
  require "there is no service account ${OPTION[service-account]:-default} in namespace $NAMESPACE" \
    kubectl "--context=$CONTEXT" "--namespace=$NAMESPACE" get serviceaccount "${OPTION[service-account]:-default}"
  require_plan
  if given own-node-pool; then
    if [ -z "$(ask '' gcloud container node-pools describe "$NAME" "--cluster=${OPTION[cluster]}" "--project=${OPTION[project]}" "--location=$LOCATION" "--format=value(name)")" ]; then
      create_node_pool
    fi
  fi
  if [ "$SANDBOX" = fleet ]; then start_fleet; fi
  feed "$(trainer_manifest)" kubectl "--context=$CONTEXT" apply --filename=-
  if ! given no-log; then
    k "--namespace=$NAMESPACE" wait --for=condition=Ready pod "--selector=$PODS" --timeout=3600s
    log
  fi
}

credentials() {
  run gcloud container clusters get-credentials "${OPTION[cluster]}" "--project=${OPTION[project]}" "--location=$LOCATION"
}

log() {
  k "--namespace=$NAMESPACE" logs "--selector=$PODS,batch.kubernetes.io/job-completion-index=0" \
    --container=trainer --follow --tail=200
}

action=${1:-}
shift || true
case $action in
  -h | --help | help) usage; exit 0 ;;
  start | status | log | stop | delete) ;;
  *) die "start, status, log, stop or delete, not '$action' (see --help)" ;;
esac
parse "name accelerator project zone location cluster image bucket namespace service-account sandbox sandbox-image" \
  "own-node-pool spot no-log allow-multi-host skip-plan dry-run" "$@"
require_options name project zone cluster
check_name
check_project
check_zone
check_value cluster "$CLUSTER_NAME" "the name of a cluster"
check_value location '[a-z]+-[a-z]+[0-9]+(-[a-z])?' "a region or zone such as us-east5"
check_value namespace "$KUBERNETES_NAME" "the name of a namespace"
check_value service-account "$KUBERNETES_NAME" "the name of a Kubernetes service account"
check_value sandbox 'local|fleet' "local or fleet"
need_tools gcloud kubectl
NAME=${OPTION[name]}
LOCATION=${OPTION[location]:-${OPTION[zone]}}
NAMESPACE=${OPTION[namespace]:-default}
SANDBOX=${OPTION[sandbox]:-local}
CONTEXT=gke_${OPTION[project]}_${LOCATION}_${OPTION[cluster]}
PODS=jobset.sigs.k8s.io/jobset-name=$NAME
case $action in
  start) start ;;
  status)
    credentials
    k "--namespace=$NAMESPACE" get "jobset/$NAME" --output=wide
    k "--namespace=$NAMESPACE" get pods "--selector=$PODS" --output=wide ;;
  log) credentials; log ;;
  stop)
    credentials
    k "--namespace=$NAMESPACE" patch "jobset/$NAME" --type=merge '--patch={"spec":{"suspend":true}}'
    k "--namespace=$NAMESPACE" wait --for=delete pod "--selector=$PODS" --timeout=1860s ;;
  delete)
    credentials
    k "--namespace=$NAMESPACE" delete "jobset/$NAME" --ignore-not-found --cascade=foreground --timeout=1860s
    if [ "$SANDBOX" = fleet ]; then
      k --namespace=$FLEET delete deployment,service,horizontalpodautoscaler,poddisruptionbudget,networkpolicy $FLEET --ignore-not-found
    fi
    if given own-node-pool; then
      run gcloud container node-pools delete "$NAME" "--cluster=${OPTION[cluster]}" "--project=${OPTION[project]}" "--location=$LOCATION" --quiet
    fi ;;
esac
