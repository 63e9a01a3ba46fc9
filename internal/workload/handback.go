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

import (
	"bytes"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// HandBack gives fields of the pod template (at this path) back to the field manager that applies
// the workload server-side, after a rollback made the operator their manager. Otherwise the next
// apply would conflict with the operator, or leave fields that only the restored template has. If
// several managers apply the template, the manager with most of its fields gets them. due is false
// if there are no such fields, or no such manager.
//
// The version label of the template stays the operator's: no manifest has it, and without it all
// pods would restart. So do fields at the paths in except, by which the operator halts or holds.
func HandBack(entries []metav1.ManagedFieldsEntry, at Path, except ...Path) (changed []metav1.ManagedFieldsEntry, due bool, err error) {
	if !slices.ContainsFunc(entries, func(e metav1.ManagedFieldsEntry) bool { return ownsTemplate(&e, at) }) {
		return nil, false, nil
	}
	given := fieldpath.NewSet()
	left := make([]metav1.ManagedFieldsEntry, 0, len(entries))
	to, most := -1, 0
	var receives *fieldpath.Set
	for i := range entries {
		entry := *entries[i].DeepCopy()
		set, template, err := templateFields(&entry, at, except)
		if err != nil {
			return nil, false, err
		}
		switch {
		case ownsTemplate(&entry, at):
			given = given.Union(template)
			if set = set.Difference(template); set.Empty() {
				continue
			}
			if entry.FieldsV1, err = encode(set); err != nil {
				return nil, false, err
			}
		case entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" && template.Size() > most:
			to, most, receives = len(left), template.Size(), set
		}
		left = append(left, entry)
	}
	if given.Empty() || to < 0 {
		return nil, false, nil
	}
	left[to].FieldsV1, err = encode(receives.Union(given))
	return left, err == nil, err
}

// writtenPaths has the paths of the fields that the operator writes: a Kind has them.
type writtenPaths interface {
	ContentPaths() []Path
	HaltPaths() []Path
	PacePaths() []Path
}

// LeftOver returns the managed fields of a workload without the fields that the operator has to
// give up: the template of a rollback, and the fields by which it halted the workload, after
// admission resumed it. due is false if there are none.
func LeftOver(k writtenPaths, stored metav1.Object) (changed []metav1.ManagedFieldsEntry, due bool, err error) {
	changed = stored.GetManagedFields()
	for _, path := range k.ContentPaths() {
		given, some, err := HandBack(changed, path, slices.Concat(k.HaltPaths(), k.PacePaths())...)
		if err != nil {
			return nil, false, err
		}
		if some {
			changed, due = given, true
		}
	}
	if !owesHalt(stored, k.HaltPaths()) {
		return changed, due, nil
	}
	changed, _, err = GiveUp(changed, k.HaltPaths()...)
	return changed, err == nil, err
}

// owesHalt reports whether the operator is still the manager of fields by which it halted a
// workload that is no longer halted: a server-side apply of these fields would conflict.
func owesHalt(o metav1.Object, by []Path) bool {
	if _, halted := o.GetAnnotations()[v1alpha1.HaltedAnnotation]; halted || len(by) == 0 {
		return false
	}
	_, due, err := GiveUp(o.GetManagedFields(), by...)
	return err == nil && due
}

// GiveUp removes the fields at these paths from the operator's own entries. due is false if the
// operator is the manager of none of them.
func GiveUp(entries []metav1.ManagedFieldsEntry, at ...Path) (changed []metav1.ManagedFieldsEntry, due bool, err error) {
	given := fieldpath.NewSet()
	for _, path := range at {
		given.Insert(fieldPath(path))
	}
	for i := range entries {
		entry := *entries[i].DeepCopy()
		if isOwnUpdate(&entry) {
			set := fieldpath.NewSet()
			if err := set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
				return nil, false, fmt.Errorf("read the fields of manager %s: %w", entry.Manager, err)
			}
			left := set.Difference(given)
			due = due || left.Size() < set.Size()
			if left.Empty() {
				continue
			}
			if entry.FieldsV1, err = encode(left); err != nil {
				return nil, false, err
			}
		}
		changed = append(changed, entry)
	}
	return changed, due, nil
}

// isOwnUpdate reports whether an entry is of the operator's writes.
func isOwnUpdate(entry *metav1.ManagedFieldsEntry) bool {
	return entry.Manager == v1alpha1.FieldManager && entry.Operation == metav1.ManagedFieldsOperationUpdate && entry.Subresource == "" &&
		entry.FieldsV1 != nil
}

// ownsTemplate reports whether an entry may be of the operator's writes of a template; it also
// reports true for other fields beside the template.
func ownsTemplate(entry *metav1.ManagedFieldsEntry, at Path) bool {
	return isOwnUpdate(entry) && bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"f:`+at[0]+`"`))
}

// templateFields reads all fields of an entry, and the fields of the pod template among them
// without the version label and other exceptions.
func templateFields(entry *metav1.ManagedFieldsEntry, at Path, except []Path) (all, template *fieldpath.Set, err error) {
	all, template = fieldpath.NewSet(), fieldpath.NewSet()
	if entry.FieldsV1 == nil {
		return all, template, nil
	}
	if err := all.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
		return nil, nil, fmt.Errorf("read the fields of manager %s: %w", entry.Manager, err)
	}
	prefix, stamp := fieldPath(at), fieldPath(at.Join("metadata", "labels", v1alpha1.VersionLabel))
	var kept []fieldpath.Path
	for _, path := range except {
		kept = append(kept, fieldPath(path))
	}
	for path := range all.All() {
		// A list or map that is managed as a whole may have the template, or a field that is kept.
		over := func(field fieldpath.Path) bool { return len(field) >= len(path) && field[:len(path)].Equals(path) }
		in := len(path) > len(prefix) && path[:len(prefix)].Equals(prefix) || over(prefix)
		if in && !path.Equals(stamp) && !slices.ContainsFunc(kept, over) {
			template.Insert(path.Copy())
		}
	}
	return all, template, nil
}

func fieldPath(p Path) (path fieldpath.Path) {
	for i := range p {
		path = append(path, fieldpath.PathElement{FieldName: &p[i]})
	}
	return path
}

func encode(set *fieldpath.Set) (*metav1.FieldsV1, error) {
	data, err := set.ToJSON()
	if err != nil {
		return nil, fmt.Errorf("write managed fields: %w", err)
	}
	return metav1.NewFieldsV1(string(data)), nil
}
