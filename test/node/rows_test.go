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
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// row is a release and its outcome. A good version runs. Then a version is released that comes up late, badly, or not at all.
type row struct {
	story    string
	replicas int32
	// minReady is the minReadySeconds of both versions.
	minReady int32
	// shape makes the released version from the good version.
	shape func(*appsv1.Deployment)
	// recreate sets the strategy of both versions to Recreate.
	recreate bool
	// first reports whether there is no good version before.
	first bool
	// beside has objects in the namespace of the good version.
	beside string
	// tells is a text that the operator must report about the cause.
	tells string
	// want is the outcome, within the time in which it usually comes. An outcome that lasts has no time: horizon is the time of all of them.
	want   string
	within time.Duration
}

// An outcome has the end of the release, or open, and whether pods serve: pods that are ready, and not restarted lately. Or it has the
// cause of a rollback. If the row has a text about the cause, the outcome has whether the operator reported it.
const (
	fine       = "Success, all serve"
	waits      = "open, old ones serve"
	down       = "open, none serve"
	rolledBack = "rolled back for "
	crashed    = rolledBack + "a crash loop"
	unpulled   = rolledBack + "its image"
	reported   = ", reported"
)

// after is how long pods fail before their release is rolled back, by default.
const after = 2 * time.Minute

// stays reports whether nothing follows the outcome. Such an outcome is read when the horizon is reached. Others are waited for.
func (r *row) stays() bool { return strings.HasPrefix(r.want, "open, ") }

// rows returns each way to crash with each number of replicas, and other outcomes of a release. Each way to crash occurs with and without a
// readiness probe, both of them with and without minReadySeconds, and once with Recreate.
func rows() []row {
	var rows []row
	for i, c := range []struct {
		story string
		// runs is how long a pod runs before it first fails.
		runs  time.Duration
		shape func(probed bool) func(*appsv1.Deployment)
	}{
		{"crashes at start", 0, crashes("exit 1")},
		{"crashes after 20 s", 20 * time.Second, crashes("sleep 20; exit 1")},
		{"is killed for memory", 5 * time.Second, func(probed bool) func(*appsv1.Deployment) {
			return both(crashes("sleep 5; exec tail /dev/zero")(probed), memory("16Mi"))
		}},
		{"fails its liveness probe", 10 * time.Second, func(probed bool) func(*appsv1.Deployment) {
			return both(crashes("exec sleep infinity")(probed), livenessFails)
		}},
		{"fails its startup probe", 6 * time.Second, func(probed bool) func(*appsv1.Deployment) {
			return both(crashes("exec sleep infinity")(probed), startupFails)
		}},
		{"its init container fails", 0, func(probed bool) func(*appsv1.Deployment) {
			return both(crashes("exec sleep infinity")(probed), initContainer("exit 1"))
		}},
		// Its startup probe takes some seconds more.
		{"its native sidecar crashes after 20 s", 30 * time.Second, func(probed bool) func(*appsv1.Deployment) {
			return both(crashes("exec sleep infinity")(probed), sidecar("httpd -p 8081; sleep 20; exit 1"))
		}},
	} {
		for j, replicas := range []int32{1, 2, 3, 10} {
			// One bit is the probe, the other minReadySeconds: each way has all four pairs, each with other replicas than the way before.
			pair := j ^ i%4
			r := row{story: c.story, replicas: replicas, shape: c.shape(pair&1 == 1), recreate: pair == (i+1)/2, want: crashed}
			if pair&1 == 1 {
				r.story += ", with a readiness probe"
			}
			if pair&2 == 2 {
				r.minReady = 10
			}
			r.within = twice(after + c.runs + time.Duration(r.minReady)*time.Second)
			rows = append(rows, r)
		}
	}
	return append(rows, []row{
		{story: "crashes after 8 s", replicas: 3, minReady: 30, shape: command("sleep 8; exit 1"),
			want: crashed, within: twice(after + 8*time.Second)},
		// Without the probe a pod may be ready for a moment. Then it is verified, and its crash suspends the release.
		{story: "crashes at start, is never ready, and there was no version before", replicas: 2, shape: both(command("exit 1"), readiness),
			first: true, want: down},
		// A container is restarted after 10 s, and has to run for a minute then.
		{story: "crashes once, then runs", replicas: 2, shape: crashesOnce, want: fine, within: twice(13*time.Second + time.Minute)},
		{story: "ends at once, and well", replicas: 2, shape: command("exit 0"), want: crashed, within: twice(after)},
		{story: "names a command that is not there", replicas: 2, shape: missingCommand, want: crashed, within: twice(after)},
		{story: "is never ready", replicas: 2, shape: readiness, want: waits},
		{story: "is ready after 30 s", replicas: 2, minReady: 5, shape: both(command("sleep 30; "+serves8080), readiness),
			want: fine, within: twice(2 * 40 * time.Second)},
		{story: "its init container hangs", replicas: 2, shape: initContainer("sleep infinity"), tells: "still running", want: waits + reported},
		{story: "its init container takes 150 s", replicas: 1, shape: initContainer("sleep 150"), want: fine, within: twice(150 * time.Second)},
		{story: "its native sidecar hangs in its startup probe", replicas: 2, shape: sidecar("sleep infinity"), want: waits},
		{story: "its native sidecar takes 150 s to start", replicas: 1, shape: sidecar("sleep 150; httpd -p 8081; exec sleep infinity"),
			want: fine, within: twice(150 * time.Second)},
		{story: "takes a variable from a ConfigMap that is not there", replicas: 2, shape: variableFrom("missing"),
			tells: `configmap "missing" not found`, want: rolledBack + "CreateContainerConfigError" + reported, within: twice(after)},
		{story: "mounts a ConfigMap that is not there", replicas: 2, shape: volumeFrom("missing"),
			tells: `configmap "missing" not found`, want: waits + reported},
		{story: "names an image that cannot be pulled", replicas: 3, shape: image("busybo"), want: unpulled, within: twice(after)},
		{story: "names an image that cannot be pulled", replicas: 2, recreate: true, shape: image("busybo"),
			want: unpulled, within: twice(after)},
		{story: "fits on no node", replicas: 2, shape: onNode("none"), tells: "node", want: waits + reported},
		{story: "is refused by Pod Security", replicas: 2, shape: hostNetwork, beside: baseline,
			tells: "violates PodSecurity", want: waits + reported},
		{story: "is refused by a quota", replicas: 2, shape: command("sleep infinity"), beside: twoPods,
			tells: "exceeded quota", want: waits + reported},
	}...)
}

// twice doubles a time that follows from the settings: half of the result is for a busy machine.
func twice(d time.Duration) time.Duration { return 2 * d }

// when returns the time of the outcome, as in the table.
func (r *row) when() string {
	if r.stays() {
		return "still after " + short(horizon)
	}
	return "within " + short(r.within)
}

// short returns a duration without seconds or minutes that are zero.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}

// minimum returns the number of pods that the strategy keeps available in a rollout: 25 % may be unavailable, rounded down.
func (r *row) minimum() int32 {
	if r.recreate {
		return 0
	}
	return r.replicas - r.replicas/4
}

// name returns the name of a row, as in the table.
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

// Objects beside a Deployment.
const (
	baseline = `{"apiVersion": "v1", "kind": "Namespace", ` +
		`"metadata": {"name": "NS", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}`
	twoPods = `{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two", "namespace": "NS"}, "spec": {"hard": {"pods": "2"}}}`
)

// good returns a version that runs.
func (r row) good(ns string) *appsv1.Deployment {
	d := plain(ns, "app", r.replicas).MinReadySeconds(r.minReady).Obj()
	if r.recreate {
		d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	}
	return d
}

// plain returns a Deployment that runs.
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

// crashes returns a version that runs a script. A probed version listens first, and is ready then.
func crashes(script string) func(probed bool) func(*appsv1.Deployment) {
	return func(probed bool) func(*appsv1.Deployment) {
		if probed {
			return both(command("httpd -p 8082; "+script), readyOn(8082))
		}
		return command(script)
	}
}

func missingCommand(d *appsv1.Deployment) { app(d).Command = []string{"/bin/missing"} }

func onPort(port int) corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}
}

func readyOn(port int) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		app(d).ReadinessProbe = &corev1.Probe{ProbeHandler: onPort(port), PeriodSeconds: 1}
	}
}

func readiness(d *appsv1.Deployment) { readyOn(8080)(d) }

func livenessFails(d *appsv1.Deployment) {
	app(d).LivenessProbe = &corev1.Probe{ProbeHandler: onPort(8080), InitialDelaySeconds: 5, PeriodSeconds: 5, FailureThreshold: 1}
}

func startupFails(d *appsv1.Deployment) {
	app(d).StartupProbe = &corev1.Probe{ProbeHandler: onPort(8080), PeriodSeconds: 2, FailureThreshold: 3}
}

func crashesOnce(d *appsv1.Deployment) {
	app(d).Command = shell("[ -e /state/crashed ] && exec sleep infinity; touch /state/crashed; sleep 3; exit 1")
	app(d).VolumeMounts = []corev1.VolumeMount{{Name: "state", MountPath: "/state"}}
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{
		Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	}}
}

func memory(limit string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		app(d).Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}
	}
}

func initContainer(script string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		c := *app(d)
		c.Name, c.Command, c.ReadinessProbe = "init", shell(script), nil
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
		app(d).EnvFrom = []corev1.EnvFromSource{{
			ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
		}}
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
