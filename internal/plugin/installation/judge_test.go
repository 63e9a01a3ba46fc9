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

package installation

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/pki"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// results are the checks that are not ok, by their ids.
type results map[string]string

// judgements change a healthy installation. The wanted results are all checks that are not ok then.
var judgements = map[string]struct {
	change func(f *Facts)
	want   results
}{
	"healthy": {func(*Facts) {}, nil},

	"no answer of the API server": {func(f *Facts) { f.Deployments.Err = errors.New("connection refused") },
		results{"kubernetes.reachable": "failed: connection refused"}},
	"not logged in": {func(f *Facts) { f.Deployments.Err = apierrors.NewUnauthorized("who are you") },
		results{"kubernetes.reachable": "failed: who are you"}},

	"no kind": {func(f *Facts) { f.CRDs[1] = notFound[*apiextensionsv1.CustomResourceDefinition]() },
		results{"kinds.changepods": "failed: the CustomResourceDefinition changepods.app.ops.cloud.alipay.com does not exist"}},
	"kinds are forbidden": {func(f *Facts) { f.CRDs[1] = forbidden[*apiextensionsv1.CustomResourceDefinition]("get it") },
		results{"kinds.changepods": "skipped: your user may not get it"}},
	"a kind is not established": {func(f *Facts) { f.CRDs[1].Value.Status.Conditions = nil },
		results{"kinds.changepods": "failed: it is not established"}},
	"another kind has the names": {func(f *Facts) {
		f.CRDs[1].Value.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.NamesAccepted, Status: "False", Message: "cp is taken"},
		}
	}, results{"kinds.changepods": "failed: it is not established: cp is taken"}},
	"kinds may be declared": {func(f *Facts) { f.ChangeKinds = forbidden[[]v1alpha1.ChangeKind]("list changekinds") },
		results{"kinds.declared": "skipped: your user may not list changekinds"}},
	"a declared kind is defended": {func(f *Facts) { f.ChangeKinds = is([]v1alpha1.ChangeKind{declaration("Ready", "Defended", "")}) }, nil},
	"a declared kind is not read yet": {func(f *Facts) { f.ChangeKinds = is(make([]v1alpha1.ChangeKind, 1)) },
		results{"kinds.declared": "warning: : the operator has not read it yet"}},
	"a declared kind is being read": {func(f *Facts) {
		f.ChangeKinds = is([]v1alpha1.ChangeKind{declaration("Ready", v1alpha1.ReasonFilling, "It takes time.")})
	}, results{"kinds.declared": "warning: routes.example.com: It takes time."}},
	"permissions for a declared kind are missing": {func(f *Facts) {
		f.ChangeKinds = is([]v1alpha1.ChangeKind{
			declaration("Ready", "Defended", ""), declaration("Authorized", v1alpha1.ReasonPermissionDenied, "It lacks: get routes.example.com."),
		})
	}, results{"kinds.declared": "failed: routes.example.com: It lacks: get routes.example.com."}},
	"a declared kind is not served": {func(f *Facts) {
		f.ChangeKinds = is([]v1alpha1.ChangeKind{declaration("Served", v1alpha1.ReasonNotServed, "Version v1 is not served.")})
	}, results{"kinds.declared": "failed: routes.example.com: Version v1 is not served."}},
	"the version is not served": {func(f *Facts) { f.CRDs[1].Value.Spec.Versions[0].Served = false },
		results{"kinds.changepods": "failed: the version v1alpha1 is not served"}},

	"no Deployment": {func(f *Facts) { f.Deployments.Value = nil }, results{
		"operator.deployment": "failed: no Deployment in altershieldoperator-system has the label app.kubernetes.io/name=altershield-operator",
		"server.healthy":      "skipped: the manager's Deployment is unknown",
	}},
	"the Deployment is forbidden": {func(f *Facts) { f.Deployments = forbidden[[]appsv1.Deployment]("list deployments") }, results{
		"operator.deployment": "skipped: your user may not list deployments",
		"server.healthy":      "skipped: the manager's Deployment is unknown",
	}},
	"scaled to 0": {func(f *Facts) { f.Deployments.Value[0].Spec.Replicas = ptr.To[int32](0) }, results{"operator.deployment": "failed: " +
		"manager is scaled to 0: no release is recorded or verified, and releases of blocked workloads are denied"}},
	"one replica": {func(f *Facts) { f.Deployments.Value[0].Spec.Replicas = ptr.To[int32](1) }, nil},
	"none available": {func(f *Facts) {
		f.Deployments.Value[0].Status = appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentReplicaFailure, Status: "True", Message: "exceeded quota"},
		}}
	}, results{"operator.deployment": "failed: manager: 0/2 replicas available, 0 up to date; exceeded quota"}},
	"under rollout": {func(f *Facts) { f.Deployments.Value[0].Status.UpdatedReplicas = 1 },
		results{"operator.deployment": "warning: manager: 2/2 replicas available, 1 up to date"}},
	"an older generation": {func(f *Facts) { f.Deployments.Value[0].Generation = 2 },
		results{"operator.deployment": "warning: manager: 2/2 replicas available, 2 up to date"}},

	"the image cannot be pulled": {func(f *Facts) {
		f.fail(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}})
	}, results{"operator.replicas": "warning: manager-b: ImagePullBackOff: not found"}},
	"a container ended": {func(f *Facts) {
		f.fail(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: "Error", ExitCode: 1, Message: "{}\n--webhook-port 0 is not a port\n",
		}})
	}, results{"operator.replicas": "warning: manager-b: terminated: Error (exit code 1): --webhook-port 0 is not a port"}},
	"a pod is not scheduled": {func(f *Facts) {
		f.fail(corev1.ContainerState{})
		f.Pods.Value[1].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False", Message: "0/3 nodes"}}
	}, results{"operator.replicas": "warning: manager-b: not scheduled: 0/3 nodes"}},
	"a pod is not ready": {func(f *Facts) { f.fail(corev1.ContainerState{}) },
		results{"operator.replicas": "warning: manager-b: Running, not ready"}},
	"a pod is being deleted": {func(f *Facts) {
		f.fail(corev1.ContainerState{})
		f.Pods.Value[1].DeletionTimestamp = &metav1.Time{Time: now}
	}, nil},
	"out of memory": {func(f *Facts) { f.restarted("OOMKilled", 137, time.Minute) },
		results{"operator.restarts": "warning: manager-a: restart 3 was 1m0s ago: OOMKilled (exit code 137)"}},
	"an old restart": {func(f *Facts) { f.restarted("Error", 1, 2*time.Hour) }, nil},
	"pods are forbidden": {func(f *Facts) { f.Pods = forbidden[[]corev1.Pod]("list pods") }, results{
		"operator.replicas": "skipped: your user may not list pods", "operator.restarts": "skipped: your user may not list pods",
		"server.healthy": "skipped: your user may not list pods",
	}},
	"a read fails": {func(f *Facts) { f.Pods.Err, f.Pods.Of = errors.New("deadline exceeded"), "list pods" }, results{
		"operator.replicas": "failed: list pods: deadline exceeded", "operator.restarts": "failed: list pods: deadline exceeded",
		"server.healthy": "failed: list pods: deadline exceeded",
	}},

	"a newer plugin": {func(f *Facts) { f.Plugin = "v0.2.0" },
		results{"operator.version": "warning: the operator is v0.1.0, the plugin v0.2.0"}},
	"an older plugin": {func(f *Facts) { f.Plugin = "v0.1.0-rc.1" },
		results{"operator.version": "warning: the operator is v0.1.0, the plugin v0.1.0-rc.1"}},
	"a plugin of a checkout": {func(f *Facts) { f.Plugin = "v0.1.0-12-gabcdef0" }, results{"operator.version": "skipped: " +
		"the operator's image is v0.1.0, the plugin's version v0.1.0-12-gabcdef0: not both are releases"}},
	"an image by digest": {func(f *Facts) {
		f.Deployments.Value[0].Spec.Template.Spec.Containers[0].Image = "localhost:5000/operator@sha256:ab"
	},
		results{"operator.version": "skipped: the operator's image is without a version, the plugin's version v0.1.0: not both are releases"}},

	"no lease": {func(f *Facts) { f.Lease.Err = notFound[int]().Err },
		results{"operator.leader": "failed: the lease altershield-operator does not exist, so no replica acts"}},
	"no lease and no election": {func(f *Facts) {
		f.Lease.Err = notFound[int]().Err
		f.args("--leader-elect=false")
	}, nil},
	"a lease without a holder": {func(f *Facts) { f.Lease.Value.Spec.HolderIdentity = ptr.To("") },
		results{"operator.leader": "failed: the lease altershield-operator has no holder, so no replica acts"}},
	"an old lease": {func(f *Facts) { f.LeaseRenewed, f.Now = false, now.Add(29*time.Second) },
		results{"operator.leader": "failed: the lease altershield-operator of manager-a was renewed 31s ago, so no replica acts"}},
	"a renewed lease by another clock": {func(f *Facts) { f.Now = now.Add(time.Minute) }, nil},

	"the mutating configuration does not exist": {func(f *Facts) { f.Mutating = notFound[webhooks]() },
		results{"webhooks.mutating": "failed: altershieldoperator-mutating-webhook-configuration does not exist: " +
			"releases are recorded only after they were stored, and no rollout is held from its beginning"}},
	"no webhook exists": {func(f *Facts) {
		f.Mutating, f.Validating = is(webhooks{}), notFound[webhooks]()
	}, results{
		"webhooks.mutating": "failed: altershieldoperator-mutating-webhook-configuration has no webhooks: " +
			"releases are recorded only after they were stored, and no rollout is held from its beginning",
		"webhooks.validating": "failed: altershieldoperator-validating-webhook-configuration does not exist: " +
			"no release of a blocked workload is denied",
	}},
	"configurations of other names": {func(f *Facts) {
		f.args("--webhook-configurations=m,v")
		f.Mutating = notFound[webhooks]()
	}, results{"webhooks.mutating": "failed: m does not exist: " +
		"releases are recorded only after they were stored, and no rollout is held from its beginning"}},
	"webhooks are forbidden": {func(f *Facts) {
		f.Mutating, f.Validating = forbidden[webhooks]("get m"), forbidden[webhooks]("get v")
	}, results{"webhooks.mutating": "skipped: your user may not get m", "webhooks.validating": "skipped: your user may not get v"}},
	"a block fails open": {func(f *Facts) {
		f.Validating.Value[1].FailurePolicy = ptr.To(admissionv1.Ignore)
	}, results{"webhooks.block": "failed: " +
		"the failure policy of vdeployment.kb.io is Ignore: releases of blocked workloads pass while the operator is down"}},

	"no webhook blocks": {func(f *Facts) { f.Validating.Value = f.Validating.Value[:1] },
		results{"webhooks.block": "failed: no webhook denies releases of blocked workloads"}},

	"no CA bundle": {func(f *Facts) { f.Mutating.Value[0].ClientConfig.CABundle = nil }, results{"webhooks.authority": "failed: " +
		"the webhook mdeployment.kb.io carries no CA bundle: the API server cannot call it"}},
	"one webhook has a shorter bundle": {func(f *Facts) {
		ca, err := pki.NewCA("short", now.Add(-24*time.Hour), 12*time.Hour)
		if err != nil {
			panic(err)
		}
		f.Validating.Value[0].ClientConfig.CABundle = ca.CertPEM
	}, results{"webhooks.authority": "failed: it expired on 2026-05-04T00:00:00Z"}},
	"a bundle with an old certificate, too": {func(f *Facts) {
		ca, err := pki.NewCA("old", now.Add(-24*time.Hour), 12*time.Hour)
		if err != nil {
			panic(err)
		}
		c := &f.Validating.Value[0].ClientConfig
		c.CABundle = append(slices.Clone(c.CABundle), ca.CertPEM...)
	}, nil},
	"the authority expires": {func(f *Facts) { f.Now = now.Add(890 * 24 * time.Hour) }, results{
		"webhooks.authority":   "warning: it expires on 2028-10-19T12:00:00Z, and should have been renewed",
		"webhooks.certificate": "failed: it expired on 2026-08-01T12:00:00Z",
	}},
	"the certificate expires": {func(f *Facts) { f.Now = now.Add(81 * 24 * time.Hour) },
		results{"webhooks.certificate": "warning: it expires on 2026-08-01T12:00:00Z, and should have been renewed"}},
	"no Secret": {func(f *Facts) { f.Certificate = notFound[*corev1.Secret]() },
		results{"webhooks.certificate": "failed: the Secret altershieldoperator-webhook-server-cert does not exist"}},
	"an empty Secret": {func(f *Facts) { f.Certificate.Value.Data = nil },
		results{"webhooks.certificate": "failed: the Secret altershieldoperator-webhook-server-cert has no certificate in tls.crt"}},
	"the Secret is forbidden": {func(f *Facts) { f.Certificate = forbidden[*corev1.Secret]("get secret") },
		results{"webhooks.certificate": "skipped: your user may not get secret"}},
	"a certificate in files": {func(f *Facts) { f.args("--webhook-cert-path", "/certs") },
		results{"webhooks.certificate": "skipped: the certificate is in files of no mounted Secret"}},
	"a certificate of cert-manager": {func(f *Facts) {
		f.args("--webhook-cert-path=/certs")
		spec := &f.Deployments.Value[0].Spec.Template.Spec
		spec.Volumes = []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "tls"}}}}
		spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "c", MountPath: "/certs/"}}
		f.Certificate = notFound[*corev1.Secret]()
	}, results{"webhooks.certificate": "failed: the Secret tls does not exist"}},

	"no namespace for the dry run": {func(f *Facts) { f.Answer.Value = DryRun{} },
		results{"webhooks.answer": "skipped: no enrolled namespace is known in which to try it"}},
	"the dry run is forbidden": {func(f *Facts) { f.Answer = forbidden[DryRun]("create deployments") },
		results{"webhooks.answer": "skipped: your user may not create deployments"}},
	"the mutating webhook did not answer": {func(f *Facts) { f.Answer.Value.Stamped = false }, results{"webhooks.answer": "failed: " +
		"in shop it passed without the label of its version: the API server did not call the mutating webhook, or got no answer"}},
	"a policy denies the dry run": {func(f *Facts) {
		f.Answer.Value = DryRun{Namespace: "shop", Denied: `admission webhook "qdeployment.kb.io" denied the request: no release on Fridays`}
	}, nil},
	"another webhook denies the dry run": {func(f *Facts) {
		f.Answer.Value = DryRun{Namespace: "shop", Denied: `admission webhook "validate.kyverno.svc" denied the request: no pause image`}
	}, results{"webhooks.answer": `skipped: a webhook or policy denies it in shop: ` +
		`admission webhook "validate.kyverno.svc" denied the request: no pause image`}},
	"another webhook does not answer": {func(f *Facts) {
		f.Answer.Value = DryRun{Namespace: "shop", Denied: `failed calling webhook "validate.kyverno.svc": no endpoints`}
	}, results{"webhooks.answer": `skipped: a webhook or policy denies it in shop: ` +
		`failed calling webhook "validate.kyverno.svc": no endpoints`}},
	"a validating webhook does not answer": {func(f *Facts) {
		f.Answer.Value = DryRun{Namespace: "shop", Denied: `failed calling webhook "vdeployment.kb.io": no endpoints`}
	}, results{"webhooks.answer": `failed: failed calling webhook "vdeployment.kb.io": no endpoints`}},

	"settings are forbidden": {func(f *Facts) { f.Settings = forbidden[[]v1alpha1.OpsConfigInfo]("list settings") }, results{
		"settings.accepted": "skipped: your user may not list settings", "settings.defense": "skipped: your user may not list settings",
	}},
	"settings do not exist": {func(f *Facts) { f.Settings = notFound[[]v1alpha1.OpsConfigInfo]() }, results{
		"settings.accepted": "skipped: the kind does not exist", "settings.defense": "skipped: the kind does not exist",
	}},
	"a setting is not valid": {func(f *Facts) {
		f.setting(settings.NameBranch).Status.Conditions = accepts(false, v1alpha1.ReasonInvalidContent, "many is no number")
	}, results{"settings.accepted": "failed: altershieldoperator-system/branch: many is no number"}},
	"a setting of an unknown name": {func(f *Facts) {
		f.setting(settings.NameBranch).Status.Conditions = accepts(false, v1alpha1.ReasonUnknownName, "no setting has this name")
	}, results{"settings.accepted": "warning: altershieldoperator-system/branch: no setting has this name"}},
	"a setting that was not read": {func(f *Facts) { f.setting(settings.NameBranch).Generation = 2 },
		results{"settings.accepted": "warning: the operator has not read altershieldoperator-system/branch yet"}},
	"a setting of a namespace is not valid": {func(f *Facts) {
		f.Settings.Value = append(f.Settings.Value, v1alpha1.OpsConfigInfo{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "branch"},
			Status:     v1alpha1.OpsConfigInfoStatus{Conditions: accepts(false, v1alpha1.ReasonInvalidContent, "many is no number")},
		})
	}, results{"settings.accepted": "warning: shop/branch: many is no number"}},
	"a setting of a namespace that is not enrolled": {func(f *Facts) {
		f.Settings.Value = append(f.Settings.Value, v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "branch"}})
	}, nil},
	"lowered": {func(f *Facts) {
		f.enable(settings.NameObserve, true)
		for _, name := range []string{settings.NameBlocking, settings.NameRollback, settings.NameHalting, settings.NameQuarantine} {
			f.enable(name, false)
		}
	}, results{"settings.defense": "warning: observe is on: releases are recorded and verified, and the operator does not act on them; " +
		"blocking is off: releases that fail do not block their workloads; rollback is off: releases whose pods are stuck are not rolled back; " +
		"halting is off: a rollout that fails continues to all pods; quarantine is off: versions that never started are denied without an end"}},
	"an uninstall did not finish": {func(f *Facts) {
		f.setting(settings.NameObserve).Spec = settings.Leave(f.setting(settings.NameObserve).Spec)
	}, results{"settings.defense": "failed: an uninstall did not finish, and left everything in observe mode"}},
	"a namespace observes": {func(f *Facts) {
		f.Settings.Value = append(f.Settings.Value, *assessed(v1alpha1.OpsConfigInfo{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: settings.NameObserve},
			Spec:       v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: true},
		}))
	}, nil},

	"no policy": {func(f *Facts) { f.Policies.Value = nil }, results{"policies.default": "warning: the DefensePolicy default does not exist " +
		"in altershieldoperator-system: releases whose pods crash after they were ready pass"}},
	"a default policy that observes": {func(f *Facts) { f.Policies.Value[0].Spec.Mode = v1alpha1.ModeObserve },
		results{"policies.default": "warning: its mode is Observe: its findings fail no release"}},
	"a policy is not accepted": {func(f *Facts) {
		f.Policies.Value[0].Status.Conditions = accepts(false, v1alpha1.ReasonInvalidPolicy, "spec.checks[0]: no")
	}, results{"policies.accepted": "failed: altershieldoperator-system/default: spec.checks[0]: no"}},

	"a server that answers": {func(f *Facts) { f.connect("True") }, nil},
	"a server that does not": {func(f *Facts) { f.connect("False") }, results{"server.healthy": "failed: " +
		"manager-a: Unreachable: connection refused; manager-b: Unreachable: connection refused"}},
	"a server without a heartbeat": {func(f *Facts) {
		f.connect("True")
		f.Pods.Value[1].Status.Conditions = f.Pods.Value[1].Status.Conditions[:1]
	}, results{"server.healthy": "warning: no result yet of manager-b"}},
	"a server and no pods": {func(f *Facts) { f.connect("True"); f.Pods.Value = nil },
		results{"server.healthy": "skipped: there are no pods"}},

	"labels without effect": {func(f *Facts) {
		f.label("kube-system", "enabled")
		f.label(ns, "enabled")
		f.label("bank", "true")
		f.label("other", "disabled")
	}, results{"namespaces.excluded": "warning: the label has no effect on kube-system (never defended), " +
		"altershieldoperator-system (never defended), bank (admission-webhook-altershield=true: only the value enabled counts)"}},
	"a namespace that the webhooks exclude": {func(f *Facts) {
		f.Mutating.Value[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "one"}}
	}, results{"namespaces.excluded": "warning: the label has no effect on shop (the webhooks' namespace selectors exclude it)"}},
	"namespaces are forbidden": {func(f *Facts) { f.Namespaces = forbidden[[]metav1.PartialObjectMetadata]("list namespaces") }, results{
		"namespaces.enrolled": "skipped: your user may not list namespaces", "namespaces.excluded": "skipped: your user may not list namespaces",
	}},
	"workloads are forbidden": {func(f *Facts) { f.Workloads = forbidden[[]metav1.PartialObjectMetadata]("list workloads") },
		results{"namespaces.workloads": "skipped: your user may not list workloads"}},
}

func TestJudge(t *testing.T) {
	for name, tc := range judgements {
		t.Run(name, func(t *testing.T) {
			f := healthy(t)
			tc.change(f)
			r := Judge(f)
			got, failed := results{}, false
			for _, c := range r.checks() {
				if c.Status != OK {
					got[c.ID] = string(c.Status) + ": " + c.Message
				}
				failed = failed || c.Status == Failed
				if bad := c.Status == Failed || c.Status == Warning; bad != (c.Remedy != "") || bad != (c.Docs != "") {
					t.Errorf("%s is %s, with the remedy %q and the page %q", c.ID, c.Status, c.Remedy, c.Docs)
				}
				if c.Docs != "" {
					anchored(t, c.Docs)
				}
			}
			if tc.want == nil {
				tc.want = results{}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("checks that are not ok (-want +got):\n%s", diff)
			}
			if r.Healthy == failed || r.Summary.OK+r.Summary.Warnings+r.Summary.Failed+r.Summary.Skipped != len(r.checks()) {
				t.Errorf("healthy is %t: %+v", r.Healthy, r.Summary)
			}
		})
	}
}

// TestNothingRead: a user who may read nothing knows neither that the installation is healthy nor that it is not.
func TestNothingRead(t *testing.T) {
	if r := (Report{}).judged(); !r.Unknown || r.Healthy {
		t.Errorf("unknown is %t, healthy %t", r.Unknown, r.Healthy)
	}
}

// TestJudgeOK checks the messages of checks that are ok, and the other fields of the report.
func TestJudgeOK(t *testing.T) {
	f := healthy(t)
	f.connect("True")
	f.Workloads = is([]metav1.PartialObjectMetadata{
		{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.SuspendLabel: "1"}}},
		{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.HeldAnnotation: "{}"}}}, {},
	})
	f.Mine = is([]Access{{For: "correct verdicts"}, {For: "see releases", Allowed: true}})
	mine := &f.Mine.Value[0]
	mine.Verb, mine.Resource, mine.Subresource, mine.Namespace = "patch", "changepods", "status", "shop"
	f.Mine.Value[1].Namespace = "shop"
	r := Judge(f)
	got := map[string]string{}
	for _, c := range r.checks() {
		got[c.ID] = c.Message
	}
	for id, want := range map[string]string{
		"operator.deployment":  "manager: 2/2 replicas available, 2 up to date, image ghcr.io/operator:v0.1.0",
		"operator.leader":      "manager-a",
		"operator.version":     "v0.1.0",
		"webhooks.authority":   "until 2028-10-19",
		"webhooks.certificate": "until 2026-08-01",
		"webhooks.answer":      "in shop",
		"rights.yours":         "in the namespace shop you may not correct verdicts (patch changepods/status)",
		"policies.accepted":    "1",
		"namespaces.enrolled":  "shop",
		"namespaces.workloads": "1 blocked, 1 held: kubectl altershield status -A",
	} {
		if got[id] != want {
			t.Errorf("%s: %q, want %q", id, got[id], want)
		}
	}
	if !r.Healthy || r.OperatorVersion != "v0.1.0" || !r.CheckedAt.Time.Equal(now) {
		t.Errorf("%+v", r)
	}
	f.OnlyOwn, f.Namespaces.Value[0].Labels = true, nil
	if c := f.enrolledNamespaces(Check{}); c.Message != "yours is not; your user may not list the others" {
		t.Errorf("own namespace: %q", c.Message)
	}
}

// TestKindNames: the kinds are the ones of the manifests.
func TestKindNames(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "config", "crd", "bases", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, file := range files {
		group, plural, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".yaml"), "_")
		got = append(got, plural+"."+group)
	}
	if diff := cmp.Diff(kindNames(), got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

var heading = regexp.MustCompile(`(?m)^#+ (.+)$`)

// anchored fails unless the page has the anchor, as GitHub makes it of a heading.
func anchored(t *testing.T, address string) {
	t.Helper()
	page, anchor, _ := strings.Cut(strings.TrimPrefix(address, docs), "#")
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", page))
	if err != nil {
		t.Errorf("%s: %v", address, err)
		return
	}
	for _, h := range heading.FindAllStringSubmatch(string(data), -1) {
		made := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		if anchor == "" || strings.ReplaceAll(made, " ", "-") == anchor {
			return
		}
	}
	t.Errorf("%s: there is no such heading", address)
}

// declaration returns a ChangeKind; it is not Ready because of this condition, unless the reason is Defended.
func declaration(condition, reason, message string) v1alpha1.ChangeKind {
	c := v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: "routes.example.com", Generation: 2}}
	said := []metav1.Condition{{Type: condition, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: 2}}
	switch {
	case reason == v1alpha1.ReasonDefended:
		said[0].Status = metav1.ConditionTrue
	case condition != v1alpha1.ConditionReady:
		said = append(said, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse,
			Reason: v1alpha1.ReasonNotDefended, Message: "see the condition", ObservedGeneration: 2})
	}
	c.Status.Conditions = said
	return c
}

// TestPermissionsAreGranted: the remedy of missing permissions names the label of ClusterRoles.
func TestPermissionsAreGranted(t *testing.T) {
	f := healthy(t)
	f.ChangeKinds = is([]v1alpha1.ChangeKind{declaration(v1alpha1.ConditionAuthorized, v1alpha1.ReasonPermissionDenied, "")})
	if got := f.declared(Check{}); !strings.Contains(got.Remedy, `aggregate-to-manager: "true"`) {
		t.Error(got.Remedy)
	}
}
