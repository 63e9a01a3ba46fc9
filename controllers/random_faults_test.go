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

package controllers_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/test/world"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// randomImages are the images on nodes. Their names tell how their pods end.
var randomImages = map[string]world.Image{
	"good": {}, "good-pulled": {Pull: 20 * time.Second}, "good-slow": {Ready: 40 * time.Second},
	"bad": {Missing: true}, "bad-crash": {Ends: 3 * time.Second}, "bad-late": {Ends: 100 * time.Second},
	"bad-later":   {Ready: time.Second, Ends: 4 * time.Minute},
	"never-ready": {Ready: 1000 * time.Hour},
}

// image returns an image, which works more often than not.
func (s *randomStory) image(r *rand.Rand) string {
	switch {
	case oneIn(r, 3) && s.nodes:
		return pick(r, "bad", "bad-crash", "bad-crash", "bad-late", "bad-later", "never-ready")
	case oneIn(r, 3):
		return pick(r, "bad", "never-ready")
	case s.nodes:
		return pick(r, "good", "good-pulled", "good-slow")
	default:
		return "good"
	}
}

// make returns the workload that the user creates.
func (s *randomStory) make(r *rand.Rand) client.Object {
	s.wants = wants{minReady: pick[int32](r, 0, 0, 5), deadline: pick[int32](r, 600, 600, 100)}
	replicas := 1 + r.Int32N(5)
	switch s.kind {
	case "StatefulSet":
		o := makeSet(replicas)
		o.Spec.MinReadySeconds = s.wants.minReady
		if oneIn(r, 3) {
			o.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		}
		return o
	case "DaemonSet":
		o := makeDaemon()
		o.Spec.MinReadySeconds = s.wants.minReady
		return o
	default:
		d := wrappers.MakeDeployment(world.Namespace, "web").Replicas(replicas).Image("good").MinReadySeconds(s.wants.minReady).
			With(func(d *appsv1.Deployment) {
				d.Spec.ProgressDeadlineSeconds = &s.wants.deadline
				d.Spec.Template = template()
			})
		if oneIn(r, 2) {
			d = d.OneByOne()
		}
		if oneIn(r, 12) {
			d = d.With(func(d *appsv1.Deployment) {
				d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			})
		}
		return d.Obj()
	}
}

func (s *randomStory) harm(r *rand.Rand) string {
	pods := s.pods()
	if len(pods) == 0 {
		return " of none"
	}
	s.disturbed = true
	pod, how := pick(r, pods...), r.IntN(4)
	switch how {
	case 0:
		crash(s.w, pod)
	case 1:
		outOfMemory(s.w, pod)
	case 2:
		unready(s.w, pod, corev1.ConditionFalse)
	default:
		unready(s.w, pod, corev1.ConditionTrue)
	}
	return fmt.Sprint(" ", pod.Name, " ", how)
}

func (s *randomStory) node(r *rand.Rand) string {
	s.disturbed = true
	n, what := 1+r.IntN(3), pick(r, "dies", "boots", "boots", "cut off", "reached", "registry gone", "registry there")
	switch what {
	case "dies":
		s.w.KillNode(n)
	case "boots":
		s.w.BootNode(n)
	case "cut off":
		s.w.CutOff(n, true)
	case "reached":
		s.w.CutOff(n, false)
	default:
		s.w.SetRegistry(what == "registry there")
	}
	return fmt.Sprint(" ", n, " ", what)
}

func (s *randomStory) outage(r *rand.Rand) string {
	what := pick(r, "stops", "starts", "starts", "crashes", "crashes")
	switch what {
	case "stops":
		if s.change() == nil {
			s.unknown[templateLabel(s.stored())] = true // the next release may come before the operator records it
		}
		s.w.Stop()
	case "starts":
		s.w.Start()
	default:
		s.w.Crash(r.IntN(2))
	}
	return " " + what
}

func (s *randomStory) server(r *rand.Rand) string {
	server := s.w.Server()
	switch r.IntN(5) {
	case 0:
		must(s.w, server.SetOutage(simulator.NoOutage))
		return " is back"
	case 1:
		o := pick(r, simulator.Refuse, simulator.HTTP500, simulator.HTML, simulator.LostReply, simulator.Reset)
		must(s.w, server.SetOutage(o))
		s.disturbed = true // no answer may count as a failure
		return " is out: " + string(o)
	case 2:
		server.ClearScripts()
		return " passes all"
	default:
		script := simulator.Script{
			Match: simulator.Match{
				CheckType: pick(r, "", altershield.CheckOrder, altershield.CheckBatch),
				Stage:     pick(r, "", altershield.StagePre, altershield.StagePost),
			},
			Verdict: pick(r, altershield.VerdictFail, altershield.VerdictFail, altershield.VerdictPass),
			Delay:   pick(r, 0, 5*time.Second, time.Minute), CallbackDelay: pick(r, 0, 0, 30*time.Second),
			Never: oneIn(r, 5), Drop: oneIn(r, 5), Times: pick(r, 0, 1),
		}
		server.Script(script)
		s.disturbed = true
		return fmt.Sprintf(" answers %+v", script)
	}
}
