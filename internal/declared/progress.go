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

package declared

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// Progress is the progress of a rollout.
type Progress struct {
	Complete bool
	// Stuck is why the rollout does not advance; empty if it may.
	Stuck string
	// Message describes a rollout that is not complete; empty if there is nothing to add.
	Message string
}

// ProgressOf returns the progress of the rollout of an object that was changed at a time. Without an
// expression of the ChangeKind, kstatus decides: by observedGeneration and the conditions Reconciling, Stalled and Ready.
func (k *Kind) ProgressOf(object map[string]any, since time.Time) (p Progress, err error) {
	if err := whole(object); err != nil {
		return p, err
	}
	of := rules.Object{Object: object, Since: since}
	if k.complete == nil || k.stuck == nil {
		result, err := status.Compute(&unstructured.Unstructured{Object: object})
		switch {
		case err != nil && k.complete == nil:
			return p, fmt.Errorf("spec.rollout.complete is absent, and the status cannot be read by the rules of kstatus: %w; "+
				"set spec.rollout.complete and spec.rollout.stuck", err)
		case err == nil:
			p.Complete, p.Message = result.Status == status.CurrentStatus, wording.Brief(result.Message)
			if result.Status == status.FailedStatus {
				p.Stuck = p.Message
			}
		}
	}
	if k.complete != nil {
		p.Message = ""
		if p.Complete, err = eval(k.complete, "spec.rollout.complete", of); err != nil {
			return Progress{}, err
		}
	}
	if k.stuck != nil {
		if p.Stuck, err = eval(k.stuck, "spec.rollout.stuck", of); err != nil {
			return Progress{}, err
		}
		p.Stuck = wording.Brief(p.Stuck)
	}
	if p.Complete {
		p.Message, p.Stuck = "", ""
	}
	return p, nil
}

// IsCurrent reports whether a pod has the current content of an object. revision is the metadata of the newest
// ControllerRevision that the object owns; nil if there is none.
func (k *Kind) IsCurrent(object, pod, revision map[string]any) (bool, error) {
	return eval(k.current, "spec.pods.current", rules.Object{Object: object, Pod: pod, Revision: revision})
}

// eval evaluates the expression of a field of the ChangeKind.
func eval[T bool | string](v *rules.Value[T], field string, of rules.Object) (got T, err error) {
	if err = whole(of.Object); err != nil {
		return got, err
	}
	if got, err = v.Eval(of); err != nil {
		err = fmt.Errorf("%s: %w", field, err)
	}
	return got, err
}

// Selector returns the selector of the pods of an object. It never selects all pods.
func (k *Kind) Selector(object map[string]any) (labels.Selector, error) {
	if len(k.labels) > 0 {
		set := labels.Set{}
		for _, key := range slices.Sorted(maps.Keys(k.labels)) {
			value, err := eval(k.labels[key], fmt.Sprintf("spec.pods.labels[%s]", key), rules.Object{Object: object})
			if err != nil {
				return nil, err
			}
			set[key] = value
		}
		selector, err := set.AsValidatedSelector()
		if err != nil {
			return nil, fmt.Errorf("spec.pods.labels: %w", err)
		}
		return selector, nil
	}
	selector, err := selectorOf(object, k.selects)
	if err == nil && selector.Empty() {
		err = errors.New("it selects all pods")
	}
	if err != nil {
		return nil, fmt.Errorf("spec.pods.selector: %s: %w", k.selects, err)
	}
	return selector, nil
}

// selectorOf reads a selector: a LabelSelector, or its text.
func selectorOf(object map[string]any, path []string) (labels.Selector, error) {
	switch value, _ := get(object, path); value := value.(type) {
	case string:
		return labels.Parse(value)
	case map[string]any:
		var selector metav1.LabelSelector
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(value, &selector); err != nil {
			return nil, err
		}
		return metav1.LabelSelectorAsSelector(&selector)
	default:
		return nil, errors.New("it is no selector")
	}
}
