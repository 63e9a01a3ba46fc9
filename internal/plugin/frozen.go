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
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
)

// exitFrozen is the exit code of check --frozen while a workload is frozen.
const exitFrozen = 3

// FreezeReport lists the frozen workloads of a namespace: the output of check --frozen -o json.
type FreezeReport struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata `json:"metadata"`
	// Frozen workloads, by freeze and name.
	Frozen []FrozenWorkload `json:"frozen"`
}

// FrozenWorkload is a workload whose releases a freeze denies.
type FrozenWorkload struct {
	// Workload as kind/name.
	Workload string `json:"workload"`
	// Freeze as namespace/policy/freeze, and its end.
	Freeze string      `json:"freeze"`
	Until  metav1.Time `json:"until"`
}

// frozen reports which workloads of a namespace are frozen.
func (o *checkOptions) frozen(ctx context.Context) error {
	printer, err := o.printer()
	if err != nil {
		return err
	}
	namespace, err := o.namespace()
	if err != nil {
		return err
	}
	live, err := o.client()
	if err != nil {
		return err
	}
	operator := operatorIn(ctx, live, o.operatorNamespace)
	v, r := &census{}, newReader(live)
	kinds, err := o.kinds(ctx, live)
	if err != nil {
		return err
	}
	for _, kind := range kinds.Kinds() {
		if err := v.loadKind(ctx, r, kind, operator, namespace, o.Now()); err != nil && !o.skips(ctx, kind, err) {
			return fmt.Errorf("list %s: %w", kind.Resource(), err)
		}
	}
	scopes := slices.Compact([]string{operator, namespace})
	for _, load := range []func(context.Context, *reader, string, []string) error{v.loadNamespaces, v.loadSettings, v.loadPolicies} {
		if err := load(ctx, r, operator, scopes); err != nil {
			return err
		}
	}
	if len(v.missing) > 0 {
		return remedy(fmt.Errorf("it is not known whether %s is frozen: %s", namespace, strings.Join(v.missing, "; ")),
			"name the namespace of the operator with --operator-namespace")
	}
	report := frozenOf(v, operator, namespace, o.Now())
	if printer == nil {
		printFrozen(o.Out, report)
	} else if err := printObject(o.Out, printer, report); err != nil {
		return err
	}
	if len(report.Frozen) > 0 {
		return &ExitError{Code: exitFrozen}
	}
	return nil
}

// frozenOf returns the workloads whose releases are denied now.
func frozenOf(v *census, operator, namespace string, now time.Time) *FreezeReport {
	report := &FreezeReport{Metadata: Metadata{Name: namespace}, Frozen: []FrozenWorkload{}}
	report.APIVersion, report.Kind = v1alpha1.GroupVersion.String(), "FreezeReport"
	policy.Sort(v.policies, operator)
	for _, s := range v.snapshots {
		if level, _ := s.defense(); level == DefenseObserved || level == DefenseNotEnrolled || level == DefenseOptedOut {
			continue
		}
		of := policy.Workload{Namespace: namespace, NamespaceLabels: s.namespace.Labels, Labels: s.workload.Labels}
		if f := policy.FrozenAt(v.policies, operator, now, of); f != nil && f.Denies() {
			report.Frozen = append(report.Frozen, FrozenWorkload{s.target.String(), f.Name, metav1.NewTime(f.End)})
		}
	}
	slices.SortFunc(report.Frozen, func(a, b FrozenWorkload) int {
		return strings.Compare(a.Freeze+" "+a.Workload, b.Freeze+" "+b.Workload)
	})
	return report
}

func printFrozen(w io.Writer, r *FreezeReport) {
	if len(r.Frozen) == 0 {
		printf(w, "No workload in %s is frozen.\n", r.Metadata.Name)
	}
	for _, f := range r.Frozen {
		printf(w, "%s is frozen until %s by %s\n", f.Workload, f.Until.UTC().Format(time.RFC3339), f.Freeze)
	}
}
