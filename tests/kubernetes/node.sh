#!/bin/bash
# The node of tests/kubernetes/run, in namespaces of its own: the services of a
# cluster, and the checks.
#
#   node.sh FOLDER-OF-THE-BUILD FOLDER-OF-THE-STATE CONTROL-GROUP
set -uo pipefail
dir=$1 state=$2 group=$3
# shellcheck source=../lib/check.sh
. tests/lib/check.sh
export KUBECONFIG=$state/kubeconfig
memory=/sys/fs/cgroup/memory$group/kubepods

# --- the cluster -------------------------------------------------------------

# until_true WHAT COMMAND...: wait for at most two minutes until it succeeds.
until_true()
{
	local what=$1 end=$((SECONDS + 120))

	shift
	until "$@" >"$state/last" 2>&1; do
		((SECONDS < end)) || { tail -n 20 "$state"/{last,*.log}; fail "$what"; }
		sleep 0.3
	done
	echo "ok: $what"
}

configure()
{
	cat >"$state/net/net.conflist" <<-J
		{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge",
		 "bridge": "pods", "isGateway": true, "ipam": {"type": "host-local",
		 "ranges": [[{"subnet": "10.88.0.0/16"}]], "dataDir": "$state/net"}}]}
	J
	cat >"$state/containerd.toml" <<-J
		version = 2
		root = "$state/containerd"
		[plugins."io.containerd.grpc.v1.cri"]
		sandbox_image = "docker.io/library/pause:1"
		restrict_oom_score_adj = true
		[plugins."io.containerd.grpc.v1.cri".cni]
		bin_dir = "$dir/debian/usr/lib/cni"
		conf_dir = "$state/net"
	J
	cat >"$KUBECONFIG" <<-J
		{"apiVersion": "v1", "kind": "Config", "current-context": "k",
		 "clusters": [{"name": "k", "cluster": {"insecure-skip-tls-verify": true,
		  "server": "https://127.0.0.1:6443"}}],
		 "users": [{"name": "k", "user": {"token": "admin"}}],
		 "contexts": [{"name": "k", "context": {"cluster": "k", "user": "k"}}]}
	J
	cat >"$state/kubelet.yaml" <<-J
		{"kind": "KubeletConfiguration", "failSwapOn": false, "resolvConf": "",
		 "apiVersion": "kubelet.config.k8s.io/v1beta1", "cgroupRoot": "$group",
		 "authentication": {"anonymous": {"enabled": true}, "webhook":
		  {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"},
		 "evictionHard": {"memory.available": "100Mi"}}
	J
	echo admin,admin,admin,system:masters >"$state/tokens"
	openssl genrsa -out "$state/key" 2048 2>/dev/null
}

# service NAME ARGUMENT...
service()
{
	"$@" >"$state/$1.log" 2>&1 &
}

start_cluster()
{
	mount -t tmpfs -o mode=755 run /run
	mkdir -p "$state/net" /sys/fs/cgroup/{cpu,cpuacct,cpuset,memory,systemd,pids}"$group"
	ip link set lo up && ip link add pods type bridge &&
		ip address add 10.88.0.1/16 dev pods && ip link set pods up &&
		ip route add default dev pods || fail "a network"
	configure
	service containerd --config "$state/containerd.toml"
	service etcd --data-dir "$state/etcd" --unsafe-no-fsync
	service kube-apiserver --etcd-servers http://127.0.0.1:2379 \
		--cert-dir "$state" --bind-address 127.0.0.1 --allow-privileged \
		--advertise-address 10.88.0.1 --endpoint-reconciler-type none \
		--service-cluster-ip-range 10.96.0.0/16 \
		--token-auth-file "$state/tokens" --authorization-mode AlwaysAllow \
		--service-account-issuer https://k \
		--service-account-signing-key-file "$state/key" \
		--service-account-key-file "$state/key" \
		--kubelet-preferred-address-types InternalIP \
		--disable-admission-plugins ServiceAccount \
		--enable-admission-plugins PodSecurityPolicy
	until_true "the API answers" kubectl get --raw /readyz
	service kube-controller-manager --kubeconfig "$KUBECONFIG" \
		--leader-elect=false --cert-dir "$state"
	service kube-scheduler --kubeconfig "$KUBECONFIG" --leader-elect=false
	for image in "$dir"/images/*.tar; do
		until_true "an image is there" ctr -n k8s.io images import "$image"
	done
	service kubelet --config "$state/kubelet.yaml" \
		--kubeconfig "$KUBECONFIG" --container-runtime remote \
		--container-runtime-endpoint unix:///run/containerd/containerd.sock \
		--hostname-override node --node-ip 10.88.0.1 \
		--root-dir "$state/kubelet" --cert-dir "$state"
	until_true "the node is ready" \
		kubectl wait --for condition=ready node/node --timeout 1s
}

# --- the manifests -----------------------------------------------------------

# manifest N: print the Nth block of the section.
manifest()
{
	sed -n '/^## Kubernetes/,/^## Upgrades/p' docs/deploy.md |
		awk -v n="$1" '/^```/ { block++; next } block == 2 * n - 1' |
		sed 's/64Gi/4Gi/; s/2Gi/512Mi/; s/namespace: team/namespace: default/'
}

# client NAME UID: the manifest of a client by another name.
client()
{
	manifest 2 | sed "s/name: reader}/name: $1}/; s/1234/$2/g"
}

# policy NAME PSEUDO-PROFILE FIELD...: a PodSecurityPolicy.
policy()
{
	local name=$1 profile=$2 any='{rule: RunAsAny}'

	shift 2
	printf '%s\n' "apiVersion: policy/v1beta1" "kind: PodSecurityPolicy" \
		"metadata: {name: $name, annotations:" \
		" {seccomp.security.alpha.kubernetes.io/allowedProfileNames: '$profile'}}" \
		"spec:" "  seLinux: $any" "  supplementalGroups: $any" \
		"  fsGroup: $any" "${@/#/  }" | kubectl apply -f - 2>&1
}

in_pod()
{
	kubectl exec -i "$@"
}

broker_pod()
{
	kubectl get pod -l app=fsdpd -o 'jsonpath={.items[0].metadata.name}'
}

# signal NUMBER head|tail: send it to the supervisor or the broker.
signal()
{
	in_pod "$(broker_pod)" -- sh -c "kill -$1 \$(pgrep -x fsdpd | $2 -n 1)"
}

is_ready()
{
	kubectl wait --for "condition=ready${2:-}" pod/"${1:-$(broker_pod)}" --timeout 1s
}

# Print how many tensors there are, and how many of them are held.
tensors()
{
	in_pod watcher -- fsdpctl ls | awk '/ host$/ { n++; held += $(NF - 4) > 0 }
		END { print n + 0, held + 0 }'
}

sees()
{
	[[ $(tensors) == "$1" ]]
}

# The supervisor has a child.
lives()
{
	[[ $(in_pod "$broker" -- pgrep -cx fsdpd) == 2 ]]
}

# The shared memory, in MiB, that is charged to a pod, or to all.
charged()
{
	local pod=

	[[ $1 == all ]] ||
		pod=/burstable/pod$(kubectl get pod "$1" -o 'jsonpath={.metadata.uid}')
	awk '/^total_shmem / { print int($2 / 1048576) }' "$memory$pod/memory.stat"
}

charges()
{
	(($(charged "$1") >= $2 && $(charged "$1") < $2 + 16))
}

hold='import fsdp, time; a = fsdp.connect().get("team/put").numpy(); '

start_cluster
policy any '*' 'privileged: true' 'hostPID: true' "allowedCapabilities: ['*']" \
	"volumes: ['*']" 'runAsUser: {rule: RunAsAny}'
manifest 1 | kubectl apply -f - && client watcher 1234 | kubectl apply -f - &&
	client reader 1234 | kubectl apply -f - &&
	client other 1235 | kubectl apply -f - || fail "the manifests are accepted"
for pod in '' watcher reader other; do
	until_true "pod ${pod:-of the broker} is ready" is_ready $pod
done
broker=$(broker_pod)

# --- clients -----------------------------------------------------------------

head -c 64M /dev/urandom | in_pod reader -- sh -c "cat >/tmp/in.raw &&
	fsdpctl put /tmp/in.raw --name team/put --dtype u8 --shape $((64 << 20))" ||
	fail "a pod publishes"
scripts/make-model --layers 2 "$state/model" >/dev/null
in_pod reader -- sh -c 'cat >/tmp/m.safetensors &&
	fsdpctl load /tmp/m.safetensors --prefix model/' <"$state/model" \
	>/dev/null || fail "a pod loads a model"
check "the put tensor is charged to the broker" charges "$broker" 64
check "the model is charged to its loader" charges reader 110
check "another pod gets it" in_pod watcher -- sh -c \
	'fsdpctl get team/put -o /tmp/out.raw && [ $(stat -c %s /tmp/out.raw) = 67108864 ]'
check "another user's pod is refused" eval \
	'! in_pod other -- fsdpctl get team/put -o /tmp/out.raw 2>/dev/null'

in_pod reader -- python3 -c "$hold bytearray(1 << 30)"
check "a client in a pod is killed for memory" [ $? == 137 ]
check "its hold has ended" sees "25 0"
in_pod reader -- python3 -c "$hold time.sleep(1000)" &
until_true "a pod holds a tensor" sees "25 1"
kubectl delete pod reader --grace-period 1
until_true "its hold ends with the pod" sees "25 0"
check "the model is charged to all pods together" charges all 174

# --- the broker --------------------------------------------------------------

in_pod watcher -- python3 -c "import fsdp, sys; c = fsdp.connect()
a = c.get('team/put').numpy(); s = a.sum(); sys.stdin.read()
assert a.sum() == s" < <(
	until_true "a client holds a tensor" sees "25 1" >&2
	signal 9 tail
	until_true "a killed broker comes back with its tensors" sees "25 1" >&2
) || fail "a reader goes on"
signal STOP tail
until_true "the probe fails if the broker hangs" is_ready "$broker" =false
signal CONT tail
until_true "and succeeds when it goes on" is_ready "$broker"
check "the container was not restarted" sees "25 0"
manifest 1 | sed 's/4Gi/3Gi/' | kubectl apply -f -
until_true "a changed manifest is there" sh -c \
	'kubectl get ds fsdpd -o yaml | grep -q "observedGeneration: 2"'
check "its pod stays" [ "$(broker_pod)" == "$broker" ]
kubectl delete pod "$broker"
until_true "a deleted pod has a successor" is_ready
check "which is empty" sees "0 0"
broker=$(broker_pod)
signal 9 head
until_true "kubelet restarts a container whose supervisor was killed" sh -c \
	"kubectl get pod $broker | grep -q ' 1/1 .* 1 '"
for _ in {1..5}; do
	until_true "a broker serves before it is killed" lives
	signal 9 tail
done
until_true "kubelet restarts a container whose broker died five times" sh -c \
	"kubectl get pod $broker | grep -q ' 1/1 .* 2 '"

# --- restricted namespaces ---------------------------------------------------

policy restricted runtime/default 'requiredDropCapabilities: [ALL]' \
	'allowPrivilegeEscalation: false' 'runAsUser: {rule: MustRunAsNonRoot}' \
	'volumes: [configMap, emptyDir, secret, projected, persistentVolumeClaim]'
kubectl delete psp any 2>&1
until_true "a restricted namespace refuses a hostPath" eval \
	'! (client late 1234 | kubectl apply -f -)'
manifest 3 | kubectl apply -f - || fail "a volume and a claim are accepted"
client late 1234 | sed 's/hostPath: {.*}}/persistentVolumeClaim: {claimName: fsdpd, readOnly: true}}/' |
	kubectl apply -f - || fail "a restricted namespace admits a claim"
until_true "a client with a claim runs" in_pod late -- fsdpctl ping --count 1
