//go:build linux

/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package node

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// row is a release and what becomes of it. A good version runs; then a version
// is released that comes up late, badly, or not at all.
type row struct {
	story    string
	replicas int32
	// minReady are the minReadySeconds of both versions.
	minReady int32
	// shape makes the version that is released of the good one.
	shape func(*appsv1.Deployment)
	// recreate: the strategy of both versions is Recreate.
	recreate bool
	// first: there is no good version before it.
	first bool
	// beside are objects that are in the namespace with the good version.
	beside string
	// tells is what the operator has to say of the cause.
	tells string
	// today is what becomes of it, want what should: the outcome, or several with
	// " or " between them where chance decides. Empty want: as today. A row is
	// pending while something else than it should may become of it.
	today, want string
}

// An outcome says how the release ended, or that it did not, and whether pods
// serve: ready, and not restarted lately. Or it says that the release was rolled
// back, and for what. Where a row says what has to be told, it says whether it is.
const (
	fine       = "Success, all serve"
	missed     = "Success, none serve"
	waits      = "open, old ones serve"
	down       = "open, none serve"
	suspended  = "Suspend, none serve"
	rolledBack = "rolled back for "
	crashed    = rolledBack + "a crash loop"
	unpulled   = rolledBack + "its image"
	// A crash loop is ready for a moment at each start, and a busy kubelet tells of
	// its end late. What comes of it depends on who looks when.
	// Where its pods were verified, the default policy sees it.
	byChance = missed + " or " + crashed + " or " + down + " or " + waits + " or " + suspended + " or Suspend, old ones serve"
	// A busy machine may take longer than is watched.
	unpulledByChance = unpulled + " or " + waits + " or " + down
	told             = ", told"
)

func rows() []row {
	var rows []row
	for _, c := range []struct {
		story string
		shape func(*appsv1.Deployment)
	}{
		{"crashes after 8 s", command("sleep 8; exit 1")},
		{"crashes 8 s after it was ready", both(command("httpd -p 8080; sleep 8; exit 1"), readiness)},
	} {
		for _, replicas := range []int32{1, 2, 3, 10} {
			for _, minReady := range []int32{0, 30} {
				rows = append(rows, row{story: c.story, replicas: replicas, minReady: minReady, shape: c.shape, today: byChance, want: crashed})
			}
		}
	}
	return append(rows, []row{
		{story: "crashes after 20 s", replicas: 1, minReady: 10, shape: command("sleep 20; exit 1"), today: byChance, want: crashed},
		{story: "crashes after 20 s", replicas: 3, minReady: 10, shape: command("sleep 20; exit 1"), today: byChance, want: crashed},
		{story: "ends at once, and well", replicas: 2, shape: command("exit 0"), today: byChance, want: crashed},
		{story: "names a command that is not there", replicas: 2, shape: missingCommand, today: byChance, want: crashed},
		{story: "crashes after 8 s", replicas: 2, recreate: true, shape: command("sleep 8; exit 1"), today: byChance, want: crashed},
		// Two seconds before settle is over, and a busy kubelet tells of it later than
		// that: where it does so of both pods at their first start, nothing tells them
		// from good ones yet.
		{story: "crashes after 8 s, and there was no version before", replicas: 2, shape: command("sleep 8; exit 1"), first: true,
			today: down + " or " + missed + " or " + suspended, want: down + " or " + suspended},
		{story: "crashes once, then runs", replicas: 2, shape: crashesOnce, today: fine},
		{story: "is killed for memory at once", replicas: 2, shape: both(command("exec tail /dev/zero"), memory("16Mi")),
			today: byChance, want: crashed},
		{story: "is killed for memory after 30 s", replicas: 2, shape: both(command("sleep 30; exec tail /dev/zero"), memory("16Mi")),
			today: byChance, want: crashed},
		{story: "fails its liveness probe", replicas: 2, shape: livenessFails, today: byChance, want: crashed},
		{story: "fails its startup probe", replicas: 2, shape: startupFails, today: byChance, want: crashed},
		{story: "is never ready", replicas: 2, shape: readiness, today: waits},
		{story: "is ready after 30 s", replicas: 2, minReady: 5, shape: both(command("sleep 30; httpd -p 8080; exec sleep infinity"), readiness), today: fine},
		{story: "its init container fails", replicas: 2, shape: initContainer("exit 1"), today: byChance, want: crashed},
		{story: "its init container hangs", replicas: 2, shape: initContainer("sleep infinity"), tells: "still running",
			today: waits + told},
		{story: "its init container takes 150 s", replicas: 1, shape: initContainer("sleep 150"), today: fine + " or " + waits, want: fine},
		{story: "its native sidecar crashes", replicas: 2, shape: sidecar("sleep 1; exit 1"), today: byChance, want: crashed},
		{story: "its native sidecar hangs in its startup probe", replicas: 2, shape: sidecar("sleep infinity"),
			today: waits},
		{story: "its native sidecar takes 150 s to start", replicas: 1, shape: sidecar("sleep 150; httpd -p 8081; exec sleep infinity"),
			today: fine + " or " + waits, want: fine},
		{story: "takes a variable from a ConfigMap that is not there", replicas: 2, shape: variableFrom("missing"), tells: `configmap "missing" not found`,
			today: rolledBack + "CreateContainerConfigError" + told + " or " + waits + told, want: rolledBack + "CreateContainerConfigError" + told},
		{story: "mounts a ConfigMap that is not there", replicas: 2, shape: volumeFrom("missing"), tells: `configmap "missing" not found`,
			today: waits + told},
		{story: "names an image that cannot be pulled", replicas: 3, shape: image("busybo"), today: unpulledByChance, want: unpulled},
		{story: "names an image that cannot be pulled", replicas: 2, recreate: true, shape: image("busybo"), today: unpulledByChance, want: unpulled},
		{story: "fits on no node", replicas: 2, shape: onNode("none"), tells: "node", today: waits + told},
		{story: "is refused by Pod Security", replicas: 2, shape: hostNetwork, beside: baseline, tells: "violates PodSecurity",
			today: waits + told},
		{story: "is refused by a quota", replicas: 2, shape: command("sleep infinity"), beside: twoPods, tells: "exceeded quota",
			today: waits + told},
	}...)
}

// name of a row, as in the table.
func (r row) name() string {
	name := fmt.Sprintf("%s, %d replica", r.story, r.replicas)
	if r.replicas > 1 {
		name += "s"
	}
	if r.recreate {
		name += ", strategy Recreate"
	}
	if r.minReady > 0 {
		name += fmt.Sprintf(", minReadySeconds %d", r.minReady)
	}
	return name
}

// wanted is what should become of it.
func (r row) wanted() string {
	if r.want == "" {
		return r.today
	}
	return r.want
}

// pending says that something else than it should may become of it.
func (r row) pending() bool {
	for outcome := range strings.SplitSeq(r.today, " or ") {
		if !oneOf(r.wanted(), outcome) {
			return true
		}
	}
	return false
}

func oneOf(outcomes, outcome string) bool {
	return slices.Contains(strings.Split(outcomes, " or "), outcome)
}

// Objects beside a Deployment.
const (
	baseline = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "NS", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}`
	twoPods  = `{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two", "namespace": "NS"}, "spec": {"hard": {"pods": "2"}}}`
)

// good is a version that runs.
func (r row) good(ns string) *appsv1.Deployment {
	d := plain(ns, "app", r.replicas).MinReadySeconds(r.minReady).Obj()
	if r.recreate {
		d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	}
	return d
}

// plain is a Deployment that runs.
func plain(ns, name string, replicas int32) *wrappers.DeploymentWrapper {
	return wrappers.MakeDeployment(ns, name).Replicas(replicas).Container(func(c *corev1.Container) {
		c.Image, c.ImagePullPolicy, c.Command = "busybox", corev1.PullIfNotPresent, []string{"/bin/sleep", "infinity"}
	}).With(func(d *appsv1.Deployment) { d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) })
}

func both(first, second func(*appsv1.Deployment)) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		first(d)
		second(d)
	}
}

func app(d *appsv1.Deployment) *corev1.Container { return &d.Spec.Template.Spec.Containers[0] }

func shell(script string) []string { return []string{"/bin/sh", "-c", script} }

func command(script string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { app(d).Command = shell(script) }
}

func missingCommand(d *appsv1.Deployment) { app(d).Command = []string{"/bin/missing"} }

func onPort(port int) corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}
}

func readiness(d *appsv1.Deployment) {
	app(d).ReadinessProbe = &corev1.Probe{ProbeHandler: onPort(8080), PeriodSeconds: 1}
}

func livenessFails(d *appsv1.Deployment) {
	app(d).LivenessProbe = &corev1.Probe{ProbeHandler: onPort(8080), InitialDelaySeconds: 5, PeriodSeconds: 5, FailureThreshold: 1}
}

func startupFails(d *appsv1.Deployment) {
	app(d).StartupProbe = &corev1.Probe{ProbeHandler: onPort(8080), PeriodSeconds: 2, FailureThreshold: 3}
}

func crashesOnce(d *appsv1.Deployment) {
	app(d).Command = shell("[ -e /state/crashed ] && exec sleep infinity; touch /state/crashed; sleep 3; exit 1")
	app(d).VolumeMounts = []corev1.VolumeMount{{Name: "state", MountPath: "/state"}}
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

func memory(limit string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		app(d).Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}
	}
}

func initContainer(script string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		c := *app(d)
		c.Name, c.Command = "init", shell(script)
		d.Spec.Template.Spec.InitContainers = []corev1.Container{c}
	}
}

func sidecar(script string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		initContainer(script)(d)
		c := &d.Spec.Template.Spec.InitContainers[0]
		c.Name, c.RestartPolicy = "sidecar", ptr.To(corev1.ContainerRestartPolicyAlways)
		c.StartupProbe = &corev1.Probe{ProbeHandler: onPort(8081), PeriodSeconds: 2, FailureThreshold: 1000}
	}
}

func variableFrom(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		app(d).EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
	}
}

func volumeFrom(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		app(d).VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/config"}}
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
		}}}
	}
}

func image(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { app(d).Image = name }
}

func onNode(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name}
	}
}

func hostNetwork(d *appsv1.Deployment) { d.Spec.Template.Spec.HostNetwork = true }
