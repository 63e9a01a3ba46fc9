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

package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// InForce are the settings in force for a workload.
type InForce struct {
	Settings
	// Problems are the annotations of the workload that cannot be used, one line each with its remedy.
	Problems []string
	// Lowered are the settings whose annotations lower the defense of the workload.
	Lowered []string
	// ObservedBy is the object or the annotation that turned observe mode on; empty while it is off.
	ObservedBy string
	// ByOwner means that only the owner of the workload turned observe mode on.
	ByOwner bool
}

// formerNames maps the names of settings in earlier builds to their present names.
var formerNames = map[string]struct {
	name         string
	former, kind v1alpha1.OpsConfigType
}{
	"brake":  {NameLimit, v1alpha1.FormerTypeLimit, v1alpha1.TypeLimit},
	"repair": {NameEviction, v1alpha1.FormerTypeEviction, v1alpha1.TypeEviction},
}

// underNewName returns an object of an earlier build under the present name of its setting.
func underNewName(o *v1alpha1.OpsConfigInfo) *v1alpha1.OpsConfigInfo {
	now, former := formerNames[o.Name]
	if !former || o.Spec.Type != now.former {
		return o
	}
	o = o.DeepCopy()
	o.Name, o.Spec.Type = now.name, now.kind
	return o
}

// renamed returns objects under the present names of their settings. An object of an earlier build counts while no object has
// the present name.
func renamed(objects []v1alpha1.OpsConfigInfo) []v1alpha1.OpsConfigInfo {
	var all []v1alpha1.OpsConfigInfo
	for i := range objects {
		o := underNewName(&objects[i])
		isNew := func(other v1alpha1.OpsConfigInfo) bool { return other.Name == o.Name }
		if isNew(objects[i]) || !slices.ContainsFunc(objects, isNew) {
			all = append(all, *o)
		}
	}
	return all
}

// Has reports whether a setting has an object, under its name or its former one.
func Has(objects []v1alpha1.OpsConfigInfo, name string) bool {
	return slices.ContainsFunc(objects, func(o v1alpha1.OpsConfigInfo) bool { return underNewName(&o).Name == name })
}

// Replaced judges an object of a former name that another object of the present name replaces; nil for all others.
func Replaced(o *v1alpha1.OpsConfigInfo, among []v1alpha1.OpsConfigInfo) *Assessment {
	name := underNewName(o).Name
	replaces := func(other v1alpha1.OpsConfigInfo) bool { return other.Name == name && other.Namespace == o.Namespace }
	if name == o.Name || !slices.ContainsFunc(among, replaces) {
		return nil
	}
	return &Assessment{Reason: v1alpha1.ReasonUnknownName,
		Message: fmt.Sprintf("metadata.name: the setting %q is named %q now, and that object is in force, "+
			"so this one is ignored; delete it", o.Name, name)}
}

// FromObjects computes the settings in force from the objects of the operator's namespace alone.
func FromObjects(objects []v1alpha1.OpsConfigInfo) Settings {
	return For(objects, nil, nil).Settings
}

// For computes the settings in force for a workload with these annotations, from the objects of the operator's namespace and
// of the workload's namespace. Annotations override objects of the workload's namespace, and these override the operator's.
func For(operator, namespace []v1alpha1.OpsConfigInfo, annotations map[string]string) InForce {
	operator, namespace = renamed(operator), renamed(namespace)
	l := layers{in: InForce{Settings: Default()}, contents: map[string]string{}}
	for i := range operator {
		l.apply(&operator[i], Assess(&operator[i]), "the operator")
	}
	for i := range namespace {
		o := &namespace[i]
		own := AssessOwn(o, operator)
		l.apply(o, own, "the namespace")
		if own.InForce != nil && own.InForce.Enable {
			l.names(o.Name, own.InForce.Content)
		}
	}
	l.annotate(operator, annotations)
	if !l.in.Observe {
		l.in.ObservedBy = ""
	}
	return l.in
}

// ObserveOwned puts a workload into observe mode if an object owns it; owner is the name of that object, or empty.
func (f *InForce) ObserveOwned(owner string) {
	if owner != "" && !f.Observe {
		f.Observe, f.ByOwner = true, true
		f.ObservedBy = fmt.Sprintf("its owner, the %s (the label %s=%s defends it nevertheless)",
			owner, v1alpha1.DefenseLabel, v1alpha1.DefenseEnforced)
	}
}

// layers computes settings layer by layer.
type layers struct {
	in InForce
	// contents are the contents of the nearest objects, by setting, for an annotation that only enables a setting.
	contents map[string]string
}

func (l *layers) apply(o *v1alpha1.OpsConfigInfo, a Assessment, whose string) {
	if a.InForce == nil {
		return
	}
	_ = known[o.Name].apply(&l.in.Settings, *a.InForce) // assessed as valid
	l.contents[o.Name] = a.InForce.Content
	if o.Name == NameObserve {
		l.in.ObservedBy = fmt.Sprintf("the OpsConfigInfo %q of %s", NameObserve, whose)
	}
}

// names records whether the workload or its namespace sets the part proven itself.
func (l *layers) names(name, content string) {
	l.in.RollbackOwnProven = l.in.RollbackOwnProven || name == NameRollback && strings.Contains(content, provenPart+"=")
}

// Assessment reports whether the spec of an object is in force.
type Assessment struct {
	// Accepted means that spec is in force.
	Accepted bool
	// Reason and Message explain, with the remedy if spec is not accepted.
	Reason, Message string
	// InForce is the value of this object in force; nil if the object is ignored or never was valid.
	InForce *v1alpha1.OpsConfigValue
}

// Assess judges one object of the operator's namespace.
func Assess(o *v1alpha1.OpsConfigInfo) Assessment { return assess(underNewName(o), "the default") }

// AssessOwn judges one object of an enrolled namespace, beside the objects of the operator.
func AssessOwn(o *v1alpha1.OpsConfigInfo, operator []v1alpha1.OpsConfigInfo) Assessment {
	o, operator = underNewName(o), renamed(operator)
	k, ok := known[o.Name]
	switch {
	case ok && k.ofCluster:
		return Assessment{Reason: v1alpha1.ReasonOfCluster,
			Message: fmt.Sprintf("metadata.name: the setting %q exists for the whole cluster only, so the object is ignored; "+
				"set it in the operator's namespace", o.Name)}
	case ok && locked(operator, o.Name):
		return Assessment{Reason: v1alpha1.ReasonLocked,
			Message: fmt.Sprintf("the OpsConfigInfo %q of the operator is locked and in force, so this one is ignored; "+
				"delete this one, or unlock the operator's object", o.Name)}
	default:
		return assess(o, "the operator's")
	}
}

// locked reports whether the operator's value of a setting cannot be overridden.
func locked(operator []v1alpha1.OpsConfigInfo, name string) bool {
	return slices.ContainsFunc(operator, func(o v1alpha1.OpsConfigInfo) bool { return o.Name == name && o.Spec.Locked })
}

// assess judges an object. The value named by otherwise is in force without it.
func assess(o *v1alpha1.OpsConfigInfo, otherwise string) Assessment {
	k, ok := known[o.Name]
	switch {
	case !ok:
		return Assessment{Reason: v1alpha1.ReasonUnknownName,
			Message: fmt.Sprintf("metadata.name: no setting is named %q, so the object is ignored; delete it, or name it one of %s",
				o.Name, strings.Join(names(), ", "))}
	case k.kind != o.Spec.Type:
		a := lastValid(o, otherwise)
		a.Reason = v1alpha1.ReasonTypeMismatch
		a.Message = fmt.Sprintf("spec.type: the setting %q is of type %s, not %s; spec is ignored%s", o.Name, k.kind, o.Spec.Type, a.Message)
		return a
	}
	value := v1alpha1.OpsConfigValue{Enable: o.Spec.Enable, Content: o.Spec.Content}
	var scratch Settings
	if err := k.apply(&scratch, value); err != nil {
		a := lastValid(o, otherwise)
		a.Reason = v1alpha1.ReasonInvalidContent
		a.Message = fmt.Sprintf("spec.content: %v%s", err, a.Message)
		return a
	}
	return Assessment{Accepted: true, Reason: v1alpha1.ReasonInForce, InForce: &value}
}

// lastValid returns the value in force for an object whose spec is not valid, with a message about that value.
func lastValid(o *v1alpha1.OpsConfigInfo, otherwise string) Assessment {
	if v := o.Status.InForce; v != nil {
		var scratch Settings
		if known[o.Name].apply(&scratch, *v) == nil {
			return Assessment{InForce: v,
				Message: fmt.Sprintf("; the value in force is the last valid one, enable=%t content=%q", v.Enable, v.Content)}
		}
	}
	return Assessment{Message: "; the value in force is " + otherwise}
}

// Lowers reports whether the value that a namespace gives a setting lowers the defense there. The operator's settings are
// above.
func Lowers(name string, value *v1alpha1.OpsConfigValue, above *Settings) bool {
	if value == nil {
		return false
	}
	switch name {
	case NameBlocking, NameQuarantine:
		return !value.Enable
	case NameObserve:
		return value.Enable
	case NameHolding:
		return !value.Enable && above.Hold.Holds()
	default:
		return false
	}
}
