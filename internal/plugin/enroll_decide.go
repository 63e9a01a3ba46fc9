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

package plugin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const enrolOthers = "enrol the namespaces of your workloads"

// mayEnrol reports why a namespace is never enrolled.
func mayEnrol(ns *corev1.Namespace, operator string) error {
	switch {
	case slices.Contains(workload.SystemNamespaces(), ns.Name):
		return remedy(fmt.Errorf("%s is a namespace of the cluster itself: the label has no effect there", ns.Name), enrolOthers)
	case ns.Name == operator:
		return remedy(fmt.Errorf("%s is the namespace of the operator, whose webhooks must not call themselves", ns.Name), enrolOthers)
	case ns.DeletionTimestamp != nil:
		return remedy(fmt.Errorf("the namespace %s is being deleted", ns.Name), "create it again, then enrol it")
	default:
		return nil
	}
}

// with returns a copy in which a namespace (the operator, if it is empty) has a mode; without a mode nothing changes.
func (m *modes) with(namespace, mode string) *modes {
	then := &modes{operator: m.operator, own: map[string][]v1alpha1.OpsConfigInfo{}}
	for name, objects := range m.own {
		then.own[name] = objects
	}
	if mode == "" {
		return then
	}
	set := func(objects []v1alpha1.OpsConfigInfo) []v1alpha1.OpsConfigInfo {
		objects = slices.Clone(objects)
		i := slices.IndexFunc(objects, func(o v1alpha1.OpsConfigInfo) bool { return o.Name == settings.NameObserve })
		if i < 0 {
			i, objects = len(objects), append(objects, newObserve(namespace, false))
		}
		objects[i].Spec.Enable = mode == modeObserve
		return objects
	}
	if namespace == "" {
		then.operator = set(m.operator)
	} else {
		then.own[namespace] = set(m.own[namespace])
	}
	return then
}

// newObserve returns the setting observe of a namespace.
func newObserve(namespace string, enable bool) v1alpha1.OpsConfigInfo {
	o := v1alpha1.OpsConfigInfo{Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: enable}}
	o.Namespace, o.Name = namespace, settings.NameObserve
	return o
}

// mayHave reports why a namespace or a workload would have another mode than the user wants; in is what would be in force.
func (c *connection) mayHave(mode string, in settings.InForce, then *modes, what string) error {
	if mode != modeObserve && mode != modeEnforce || in.Observe == (mode == modeObserve) {
		return nil
	}
	why := describeMode(in)
	for _, own := range then.own {
		for i := range own {
			if judged := settings.AssessOwn(&own[i], then.operator); own[i].Name == settings.NameObserve && !judged.Accepted {
				why += "; " + judged.Message
			}
		}
	}
	why = strings.Join(append([]string{why}, in.Problems...), "; ")
	do := "see the setting observe: kubectl get opsconfiginfo " + settings.NameObserve + " -A -o wide"
	if locked := lockedObserve(then.operator); locked != nil {
		do = "change the mode of the cluster with --cluster, or unlock it: " +
			c.kubectl(locked.Namespace, "patch", "opsconfiginfo", settings.NameObserve, "--type=merge", "-p", `{"spec":{"locked":false}}`)
	}
	return remedy(fmt.Errorf("%s cannot be put into %s mode: %s", what, mode, why), do)
}

// describeMode returns a sentence about the mode in force.
func describeMode(in settings.InForce) string {
	if in.Observe {
		return "in observe mode, because of " + in.ObservedBy
	}
	return "in enforce mode"
}

// lockedObserve returns the operator's setting observe if it is locked; else nil.
func lockedObserve(operator []v1alpha1.OpsConfigInfo) *v1alpha1.OpsConfigInfo {
	return observeIf(operator, func(o *v1alpha1.OpsConfigInfo) bool { return o.Spec.Locked })
}

// leavingObserve returns the operator's setting observe if an uninstall turned it on; else nil.
func leavingObserve(operator []v1alpha1.OpsConfigInfo) *v1alpha1.OpsConfigInfo {
	return observeIf(operator, func(o *v1alpha1.OpsConfigInfo) bool {
		_, leaving := settings.BeforeLeaving(o.Spec)
		return leaving
	})
}

func observeIf(operator []v1alpha1.OpsConfigInfo, is func(*v1alpha1.OpsConfigInfo) bool) *v1alpha1.OpsConfigInfo {
	i := slices.IndexFunc(operator, func(o v1alpha1.OpsConfigInfo) bool { return o.Name == settings.NameObserve && is(&o) })
	if i < 0 {
		return nil
	}
	return &operator[i]
}

// modeOf is how a workload gets a mode.
type modeOf struct {
	// what are sentences about ops; then is the workload after them.
	what []string
	ops  []workload.Op
	then *unstructured.Unstructured
}

// decideMode gives a workload a mode of its own, or none. Only values of the label that this program sets are removed.
func decideMode(t target, stored *unstructured.Unstructured, mode string) *modeOf {
	m := &modeOf{then: stored.DeepCopy()}
	enabled, disabled, enforced := settings.Enabled, settings.Disabled, v1alpha1.DefenseEnforced
	label := stored.GetLabels()[v1alpha1.DefenseLabel]
	isOurs := label == v1alpha1.DefenseDisabled || label == enforced
	switch mode {
	case modeOff:
		off := v1alpha1.DefenseDisabled
		m.label(t, stored, &off)
		return m
	case modeEnforce:
		if owner := workload.OwnerOf(stored); owner != "" {
			m.what = append(m.what, fmt.Sprintf("%s: the %s owns it, and must not undo what the operator does", t, owner))
			m.label(t, stored, &enforced)
		} else if label == v1alpha1.DefenseDisabled {
			m.label(t, stored, nil)
		}
		m.annotate(t, stored, &disabled)
	case modeObserve:
		if label == v1alpha1.DefenseDisabled {
			m.label(t, stored, nil)
		}
		m.annotate(t, stored, &enabled)
	default:
		if isOurs {
			m.label(t, stored, nil)
		}
		m.annotate(t, stored, nil)
	}
	return m
}

func (m *modeOf) label(t target, stored *unstructured.Unstructured, value *string) {
	values, changed := m.set(t, "label", v1alpha1.DefenseLabel, stored.GetLabels(), value)
	if changed {
		m.ops = append(m.ops, labelOps(stored, v1alpha1.DefenseLabel, value)...)
		m.then.SetLabels(values)
	}
}

func (m *modeOf) annotate(t target, stored *unstructured.Unstructured, value *string) {
	key := v1alpha1.SettingAnnotationPrefix + settings.NameObserve
	values, changed := m.set(t, "annotation", key, stored.GetAnnotations(), value)
	if changed {
		m.ops = append(m.ops, annotationOps(stored, key, value)...)
		m.then.SetAnnotations(values)
	}
}

// set returns a copy of values with one of them changed, and whether that is a change.
func (m *modeOf) set(t target, field, key string, values map[string]string, value *string) (then map[string]string, changed bool) {
	old, there := values[key]
	then = map[string]string{}
	for k, v := range values {
		then[k] = v
	}
	switch {
	case value == nil && !there, value != nil && there && *value == old:
		return then, false
	case value == nil:
		m.what = append(m.what, fmt.Sprintf("%s: remove the %s %s", t, field, key))
		delete(then, key)
		return then, true
	}
	what := fmt.Sprintf("%s: set the %s %s=%s", t, field, key, *value)
	if there {
		what += fmt.Sprintf(", in place of %q", old)
		m.ops = append(m.ops, workload.Op{Op: "test", Path: pointer("metadata", field+"s", key), Value: old})
	}
	m.what, then[key] = append(m.what, what), *value
	return then, true
}

// inventory counts the workloads of a namespace before its enrolment.
type inventory struct {
	// Baselines, Released and OptedOut are numbers of workloads: without a release, with an earlier one, and opted out.
	Baselines, Released, OptedOut int
	// Unprobed have a container without a readiness probe, and Hasty have no minReadySeconds.
	Unprobed, Hasty []string
}

func (v *inventory) add(kind workload.Kind, stored *unstructured.Unstructured) error {
	t := target{kind: kind, key: client.ObjectKeyFromObject(stored)}
	switch {
	case workload.OptedOut(stored.GetLabels()):
		v.OptedOut++
		return nil
	case stored.GetLabels()[v1alpha1.VersionLabel] == "":
		v.Baselines++
	default:
		v.Released++
	}
	if declarationOf(kind) != nil { // its objects may have no pods
		return nil
	}
	template, err := workload.Template(kind, stored)
	if err != nil {
		return err
	}
	containers, _, _ := unstructured.NestedSlice(template, "spec", "containers")
	for _, container := range containers {
		if fields, ok := container.(map[string]any); ok && fields["readinessProbe"] == nil {
			v.Unprobed = append(v.Unprobed, t.String())
			break
		}
	}
	if seconds, _, _ := unstructured.NestedInt64(stored.Object, "spec", "minReadySeconds"); seconds == 0 {
		v.Hasty = append(v.Hasty, t.String())
	}
	return nil
}

// describe returns lines about the effect of an enrolment, and about workloads that protect themselves too little.
func (v *inventory) describe(namespace string) []string {
	baselines := fmt.Sprintf("namespace/%s: %s without a recorded release", namespace, count(v.Baselines, "workload"))
	lines := []string{baselines + ": baselines, until their template changes"}
	if v.Released > 0 {
		lines = append(lines, fmt.Sprintf("  %s with an earlier recorded release", count(v.Released, "workload")))
	}
	if v.OptedOut > 0 {
		out := count(v.OptedOut, "workload")
		lines = append(lines, fmt.Sprintf("  %s opted out (label %s=%s)", out, v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled))
	}
	if len(v.Unprobed) > 0 {
		lines = append(lines, "  warning: without a readiness probe Kubernetes removes old pods before new pods work; "+
			"give one to each container of: "+named(v.Unprobed))
	}
	if len(v.Hasty) > 0 {
		lines = append(lines, "  warning: without minReadySeconds a pod is available at once; "+
			"set it to the time in which the program usually crashes, for: "+named(v.Hasty))
	}
	return lines
}

// enrollFlags are the flags of enroll.
type enrollFlags struct {
	mode, operator string
	cluster, wait  bool
	timeout        time.Duration
}
