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

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of all kinds of this package.
	GroupVersion = schema.GroupVersion{Group: "app.ops.cloud.alipay.com", Version: "v1alpha1"}

	// SchemeBuilder registers the kinds of this package.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&ChangeWorkload{}, &ChangeWorkloadList{},
		&ChangePod{}, &ChangePodList{},
		&OpsConfigInfo{}, &OpsConfigInfoList{},
		&DefensePolicy{}, &DefensePolicyList{},
		&DefenseEndpoint{}, &DefenseEndpointList{},
		&ChangeKind{}, &ChangeKindList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
