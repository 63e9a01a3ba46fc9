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

// Labels and annotations that control the status of a pod; the stages explain them.
const (
	// BehaviorLabel on a pod takes one of the Behavior values.
	BehaviorLabel = "kwok.altershield/behavior"
	// BehaviorCrashLoop makes the pod's first container crash repeatedly.
	BehaviorCrashLoop = "crash-loop"
	// BehaviorLateReady makes the pod ready only some time after its start.
	BehaviorLateReady = "late-ready"
	// BehaviorNeverReady keeps a running pod unready, as a failing readiness
	// probe does.
	BehaviorNeverReady = "never-ready"
	// BehaviorConfigError lets the pod wait for a missing configuration:
	// CreateContainerConfigError.
	BehaviorConfigError = "config-error"
	// BehaviorCreateError lets the runtime fail to create the pod's first
	// container: CreateContainerError.
	BehaviorCreateError = "create-error"
	// BehaviorVolume lets the pod wait for a volume: ContainerCreating.
	BehaviorVolume = "volume"
	// BehaviorInitCrash makes the pod's first init container crash repeatedly;
	// the pod needs one.
	BehaviorInitCrash = "init-crash"
	// BehaviorRunError lets the command of the pod's first container fail to
	// run: RunContainerError and back-off.
	BehaviorRunError = "run-error"
	// BehaviorStartupProbe makes the pod's first container run without starting up,
	// and be killed for it repeatedly.
	BehaviorStartupProbe = "startup-probe"
	// BehaviorLiveness makes the pod's first container run, be ready, and be
	// killed repeatedly.
	BehaviorLiveness = "liveness"

	// ReadyAfterAnnotation is the time from the start of a late-ready pod until it
	// becomes ready: a Go duration; 5s without it.
	ReadyAfterAnnotation = "kwok.altershield/ready-after"
	// CrashAfterAnnotation is the time from the start of a crash-loop pod until it
	// crashes: a Go duration. The pod is ready before.
	CrashAfterAnnotation = "kwok.altershield/crash-after"
	// PodIPAnnotation is the IP that a pod reports when it starts, if a test or a demo
	// serves its ports; without it the IP of the pod is unreachable.
	PodIPAnnotation = "kwok.altershield/pod-ip"
	// UnreadyAnnotation with the value "true" makes a running pod unready.
	UnreadyAnnotation = "kwok.altershield/unready"
	// TerminateAfterAnnotation is the time from the deletion of a pod until it ends: a
	// Go duration, at most the pod's grace period; at once without it.
	TerminateAfterAnnotation = "kwok.altershield/terminate-after"
)

// brokenImage matches images that cannot be pulled: the last part of the repository
// is "busybo", a misspelled busybox. The stages contain it literally; a test keeps
// them equal.
const brokenImage = `^([^@]*/)?busybo(:[^/@]+)?(@.+)?$`

//go:embed stages/*.yaml
var stages embed.FS

// kwokOptions raise the number of pods that kwok changes at a time; its default, four,
// makes a rollout of thousands of pods wait for kwok. kwok applies no defaults to a
// configuration, hence the other options.
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
