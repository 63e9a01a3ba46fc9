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
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/plugin/installation"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// operatorIn returns the namespace of the operator: given by --operator-namespace, found, or the default.
func operatorIn(ctx context.Context, r client.Reader, given string) string {
	if given != "" {
		return given
	}
	return cmp.Or(installation.FindNamespace(ctx, r), installation.DefaultNamespace)
}

// enrolNamespace returns the namespace that must not be enrolled: the operator's, as found, given, or by default.
func enrolNamespace(ctx context.Context, r client.Reader, given string) string {
	return cmp.Or(installation.FindNamespace(ctx, r), given, installation.DefaultNamespace)
}

// mustBeOperator returns the namespace of the operator for a write of its settings, or an error if it is not certain.
func mustBeOperator(ctx context.Context, r client.Reader, given string) (string, error) {
	found := installation.FindNamespace(ctx, r)
	switch {
	case found != "" && given != "" && given != found:
		return "", remedy(fmt.Errorf("the operator is in the namespace %s, not in %s: a setting there would not be the cluster's", found, given),
			"omit --operator-namespace")
	case found != "":
		return found, nil
	}
	// The user may not read the webhook configurations. The operator notes in one of its own settings since when it runs.
	namespace := cmp.Or(given, installation.DefaultNamespace)
	var blocking v1alpha1.OpsConfigInfo
	err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: settings.NameBlocking}, &blocking)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get opsconfiginfo %s/%s: %w", namespace, settings.NameBlocking, err)
	}
	if meta.FindStatusCondition(blocking.Status.Conditions, v1alpha1.ConditionInstalled) == nil {
		return "", remedy(fmt.Errorf("it is not known where the operator is: no setting in %s says that it was installed there", namespace),
			"name its namespace with --operator-namespace, or ask a user who may read its webhook configurations")
	}
	return namespace, nil
}

// readSettings reads the settings of the operator, and of a namespace or of all; known is false if the user may not read them, or
// the namespace of the operator has none.
func (c *connection) readSettings(ctx context.Context, r client.Reader, operator, namespace string) (found *modes, known bool, err error) {
	found = &modes{own: map[string][]v1alpha1.OpsConfigInfo{}}
	for _, of := range []string{operator, namespace} {
		var list v1alpha1.OpsConfigInfoList
		switch err := r.List(ctx, &list, client.InNamespace(of)); {
		case apierrors.IsForbidden(err):
			printf(c.ErrOut, "the settings in force are not known: %s\n", reasonOf(err))
			return found, false, nil
		case err != nil:
			return found, false, fmt.Errorf("list opsconfiginfoes of %s: %w", of, err)
		}
		for i := range list.Items {
			switch o := list.Items[i]; {
			case o.Namespace == operator && of == operator:
				found.operator = append(found.operator, o)
			case o.Namespace != operator:
				found.own[o.Namespace] = append(found.own[o.Namespace], o)
			}
		}
	}
	if len(found.operator) == 0 {
		printf(c.ErrOut, "%s\n", noSettings(operator))
		return found, false, nil
	}
	return found, true, nil
}

// inForceFor reads the settings in force for a workload; known is false if they cannot be read.
func (c *connection) inForceFor(
	ctx context.Context, r client.Reader, operator string, w *workload.Workload,
) (in settings.InForce, known bool, err error) {
	found, known, err := c.readSettings(ctx, r, operatorIn(ctx, r, operator), w.Namespace)
	if err != nil || !known {
		return settings.InForce{}, false, err
	}
	in = found.of(w.Namespace, w.Annotations)
	in.ObserveOwned(w.ObservingOwner())
	return in, true, nil
}

// modes are the settings that decide the mode of workloads.
type modes struct {
	// operator and own are the settings of the operator and of namespaces.
	operator []v1alpha1.OpsConfigInfo
	own      map[string][]v1alpha1.OpsConfigInfo
}

// of returns the settings in force for a workload of a namespace.
func (m *modes) of(namespace string, annotations map[string]string) settings.InForce {
	return settings.For(m.operator, m.own[namespace], annotations)
}
