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

package workload

import corev1 "k8s.io/api/core/v1"

// cause is a reason why a pod is not Ready.
type cause struct {
	// Reason is one word, in most cases from the kubelet, the scheduler or a controller.
	Reason string
	// Slow: the pod may still come up. Other causes are failures.
	Slow bool
	// Means explains the cause in one sentence, and Remedy says what to do about it.
	Means, Remedy string
}

// Reasons that the operator defines.
const (
	// reasonNotSeen: the kubelet of the pod's node has not seen the pod.
	reasonNotSeen = "NotSeenByKubelet"
	// reasonNodeRestarted: a container ended with its node.
	reasonNodeRestarted = "NodeRestarted"
	// reasonStartupProbe: a startup probe has not passed yet.
	reasonStartupProbe = "StartupProbe"
	// reasonNotReady: all containers run, and the pod is not Ready.
	reasonNotReady = "NotReady"
	// reasonNotMade: the pod was not created.
	reasonNotMade = "FailedCreate"

	reasonContainerCreating = "ContainerCreating"
	reasonPodInitializing   = "PodInitializing"
	reasonCrashLoop         = "CrashLoopBackOff"
	reasonError             = "Error"
)

// causes are the known causes. Any other cause counts as slow: if a failure is not certain, it is
// reported before the operator acts.
var causes = []cause{
	{"ErrImagePull", false, "An image cannot be pulled.", "Check the name of the image, the registry and the pull secret."},
	{
		"ImagePullBackOff", false, "An image could not be pulled. The kubelet tries again later.",
		"Check the name of the image, the registry and the pull secret.",
	},
	{"InvalidImageName", false, "The name of an image is not valid.", "Correct the name of the image."},
	{
		"ErrImageNeverPull", false, "An image is not on the node, and the pull policy forbids to pull it.",
		"Put the image on the nodes, or change imagePullPolicy.",
	},
	{"ImageInspectError", false, "An image on the node cannot be read.", "Look at the container runtime of the node."},
	{"RegistryUnavailable", false, "The registry does not answer.", "Look at the registry, and at the network of the node."},
	{"SignatureValidationFailed", false, "The signature of an image is not valid.", "Sign the image, or correct the policy."},
	{reasonCrashLoop, false, "A container ends again and again.", "Read its last log: kubectl logs --previous."},
	{reasonError, false, "A container ended with an error.", "Read its last log: kubectl logs --previous."},
	{"OOMKilled", false, "A container used more memory than its limit.", "Raise the limit, or use less memory."},
	{"Completed", false, "A container ended that has to keep running.", "Correct its command: it must not end."},
	{"StartError", false, "A container could not be started.", "Check its command and its mounts."},
	{"ContainerCannotRun", false, "A container could not be started.", "Check its command and its mounts."},
	{"RunContainerError", false, "A container could not be started.", "Check its command and its mounts."},
	{"CreateContainerError", false, "A container could not be created.", "Check its command, its mounts and its limits."},
	{
		"CreateContainerConfigError", false, "A ConfigMap, a Secret or a key that a container needs is missing.",
		"Create it, or correct the reference.",
	},
	{"PreCreateHookError", false, "A container could not be created.", "Look at the log of the node's kubelet."},
	{"PreStartHookError", false, "A container could not be started.", "Look at the log of the node's kubelet."},
	{"PostStartHookError", false, "The postStart hook of a container failed.", "Correct the hook."},
	{"DeadlineExceeded", false, "The pod was active for longer than its limit.", "Correct activeDeadlineSeconds."},

	{
		corev1.PodReasonUnschedulable, true, "No node has room for the pod, or no node fits it.",
		"Add nodes, lower the requests, or correct selectors and tolerations.",
	},
	{corev1.PodReasonSchedulingGated, true, "A scheduling gate blocks the pod.", "Find out who set the gate."},
	{reasonNotSeen, true, "The pod has a node, but the kubelet there has not seen it.", "Look at the node: kubectl describe node."},
	{reasonNodeRestarted, true, "A container ended because its node was restarted.", "Wait. If this goes on, look at the node."},
	{
		reasonContainerCreating, true, "Volumes are mounted, images pulled, or the network is set up.",
		"Look at the events of the pod: kubectl describe pod.",
	},
	{reasonPodInitializing, true, "Init containers are at work.", "Read the log of the init container that runs."},
	{reasonStartupProbe, true, "A startup probe has not passed yet.", "Read the log of the container, and check the probe."},
	{
		reasonNotReady, true, "The containers run, and a readiness probe or a readiness gate does not pass.",
		"Read the log of the container, and check the probe or the gate.",
	},
	{
		reasonNotMade, true, "Pods cannot be created: a quota, Pod Security, or another policy refuses them.",
		"Correct the pod template, raise the quota, or change the policy.",
	},
	{string(corev1.PodPending), true, "Nothing is known yet.", "Look at the events of the pod: kubectl describe pod."},
}

// isSlow reports whether a pod with this cause may still come up.
func isSlow(reason string) bool {
	for i := range causes {
		if causes[i].Reason == reason {
			return causes[i].Slow
		}
	}
	return true
}
