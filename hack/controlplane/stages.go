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

package controlplane

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
)

// Labels and annotations that decide what the fake kubelet makes of a pod; the
// stages explain them.
const (
	// BehaviorLabel on a pod takes one of the Behavior values.
	BehaviorLabel = "kwok.altershield/behavior"
	// BehaviorCrashLoop makes the pod's first container crash over and over.
	BehaviorCrashLoop = "crash-loop"
	// BehaviorLateReady makes the pod ready only some time after its start.
	BehaviorLateReady = "late-ready"
	// BehaviorNeverReady keeps the pod running but not ready, as a readiness
	// probe that fails does.
	BehaviorNeverReady = "never-ready"
	// BehaviorConfigError lets the pod wait for a configuration that is not
	// there: CreateContainerConfigError.
	BehaviorConfigError = "config-error"
	// BehaviorCreateError lets the runtime fail to create the pod's first
	// container: CreateContainerError.
	BehaviorCreateError = "create-error"
	// BehaviorVolume lets the pod wait for a volume: ContainerCreating.
	BehaviorVolume = "volume"
	// BehaviorInitCrash makes the pod's first init container crash over and
	// over; the pod needs one.
	BehaviorInitCrash = "init-crash"
	// BehaviorRunError lets the command of the pod's first container fail to
	// run: RunContainerError and back-off.
	BehaviorRunError = "run-error"
	// BehaviorStartupProbe makes the pod's first container run without ever
	// counting as started, and be killed for it over and over.
	BehaviorStartupProbe = "startup-probe"
	// BehaviorLiveness makes the pod's first container run, be ready, and be
	// killed over and over.
	BehaviorLiveness = "liveness"

	// ReadyAfterAnnotation says when a late-ready pod becomes ready: a Go
	// duration counted from its start; 5s without it.
	ReadyAfterAnnotation = "kwok.altershield/ready-after"
	// CrashAfterAnnotation lets a crash-loop pod run, and be ready, at first: it
	// says how long after its start it crashes, a Go duration.
	CrashAfterAnnotation = "kwok.altershield/crash-after"
	// PodIPAnnotation is the IP that a pod reports when it starts, for those whose
	// ports somebody is to serve; without it the pod has one that leads nowhere.
	PodIPAnnotation = "kwok.altershield/pod-ip"
	// UnreadyAnnotation with the value "true" makes a running pod unready for
	// as long as it is there.
	UnreadyAnnotation = "kwok.altershield/unready"
	// TerminateAfterAnnotation says how long after its deletion a pod ends: a
	// Go duration, cut to the pod's grace period; at once without it.
	TerminateAfterAnnotation = "kwok.altershield/terminate-after"
)

// brokenImage matches image references nobody can pull: those whose
// repository's own name is "busybo", a slip of the pen for busybox. The stages
// contain it literally; a test keeps them equal.
const brokenImage = `^([^@]*/)?busybo(:[^/@]+)?(@.+)?$`

//go:embed stages/*.yaml
var stages embed.FS

// kwokOptions raise the number of pods kwok moves at a time; its default, four,
// makes a rollout of thousands of pods wait for kwok. kwok takes a configuration
// as it is, without its own defaults, hence the others.
const kwokOptions = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  podPlayStageParallelism: 16
  nodePlayStageParallelism: 4
  podsOnNodeSyncParallelism: 1
  enablePodsOnNodeSyncListPager: true
`

// kwokConfig returns the configuration file of kwok with all stages.
func kwokConfig() ([]byte, error) {
	names, err := fs.Glob(stages, "stages/*.yaml")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString(kwokOptions)
	for _, name := range names {
		data, err := stages.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
			fmt.Fprintf(&b, "---\n%s\n", document)
		}
	}
	return b.Bytes(), nil
}
