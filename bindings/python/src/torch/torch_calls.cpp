#include "torch/torch_calls.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "method.h"
#include "run/passes.h"
#include "torch/torch_memory.h"

namespace fulmen::python {
namespace {

struct Torch {
  // Functions without arguments; a result other than None, False or 0 means that an observer was
  // found.
  std::vector<nb::object> questions;
  // The module; its _current_level is 0 or more inside of forward-mode derivatives.
  nb::object forward_ad;
  nb::object grad_enabled, inference_mode, deterministic;
  nb::object profiled;    // whether torch.profiler looks on
  nb::object event;       // (name, tensors): an event of it, as a context
  nb::object seed;        // draws one from torch's generator
  nb::object dispatched;  // by_framework's arguments, through torch's dispatcher
  nb::object apply;       // of the autograd.Function whose passes are the methods below
  // (gradients, tensors): gradients that say why they have none themselves.
  nb::object refuse_double_backward;
  nb::object tensor;  // torch.Tensor
};

Torch& torch() {
  static auto* kept = new Torch;  // lives as long as the process: no destructor after Python's end
  return *kept;
}

nb::object name_of(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

struct Names {
  nb::object requires_grad = name_of("requires_grad"), is_meta = name_of("is_meta"),
             current_level = name_of("_current_level");
  nb::object save_for_backward = name_of("save_for_backward"),
             saved_tensors = name_of("saved_tensors");
  nb::object set_materialize_grads = name_of("set_materialize_grads"),
             needs_input_grad = name_of("needs_input_grad");
  nb::object options = name_of("options"), contiguous = name_of("contiguous");
  nb::object top_left = name_of("top_left");
};

const Names& names() {
  static const auto* kept = new Names;
  return *kept;
}

nb::object checked(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

nb::object get(nb::handle object, const nb::object& name) {
  return checked(PyObject_GetAttr(object.ptr(), name.ptr()));
}

// For the module's functions, which any code may call at any time.
void need_torch() {
  if (!torch().tensor.is_valid()) throw std::runtime_error("fulmen.torch has not been imported");
}

void need_tuple(const char* name, nb::handle object, Py_ssize_t least, Py_ssize_t most) {
  if (PyTuple_Check(object.ptr()) == 0 || PyTuple_Size(object.ptr()) < least ||
      PyTuple_Size(object.ptr()) > most)
    throw nb::type_error((std::string(name) + " is not the tuple that is needed").c_str());
}

bool is_nothing(nb::handle answer) {
  return answer.is_none() || answer.ptr() == Py_False ||
         (PyLong_CheckExact(answer.ptr()) != 0 && PyLong_AsLong(answer.ptr()) == 0);
}

bool answers_nothing(const nb::object& question) {
  return is_nothing(checked(PyObject_CallNoArgs(question.ptr())));
}

bool has(nb::handle tensor, const nb::object& attribute) {
  return get(tensor, attribute).ptr() == Py_True;
}

bool is_tensor(nb::handle object) {
  return PyObject_IsInstance(object.ptr(), torch().tensor.ptr()) == 1;
}

Observers observers(const nb::handle* tensors, int count) {
  const Torch& t = torch();
  for (const nb::object& question : t.questions) {
    if (!answers_nothing(question)) return Observers::others;
  }
  if (PyLong_AsLong(get(t.forward_ad, names().current_level).ptr()) >= 0) return Observers::others;
  const bool gradients = !answers_nothing(t.grad_enabled);
  bool differentiable = false, subclass = false, foreign = false;
  for (int at = 0; at < count; ++at) {
    const nb::handle tensor = tensors[at];
    if (!tensor.is_valid()) continue;
    if (kind_of(tensor) != Kind::plain_torch) {
      if (!is_tensor(tensor)) {
        foreign = true;
        continue;
      }
      subclass = true;
    }
    if (at == 0 && has(tensor, names().is_meta)) return Observers::others;
    differentiable = differentiable || (gradients && has(tensor, names().requires_grad));
  }
  // torch's dispatcher takes nothing but tensors: beside other arrays subclasses are read as
  // memory. What is no array is refused then, with the argument's name, and where gradients are
  // wanted any other array is.
  if (subclass && !foreign) return Observers::others;
  // Under torch.inference_mode() nothing is differentiated, whatever torch.enable_grad() says
  // inside of it.
  return differentiable && answers_nothing(t.inference_mode) ? Observers::autograd
                                                             : Observers::nobody;
}

// An event of torch.profiler during this object's lifetime, if the profiler is active, as the
// dispatcher makes for its operators.
class ProfilerEvent {
 public:
  ProfilerEvent(const char* op, const nb::handle* tensors, int count) {
    if (answers_nothing(torch().profiled)) return;
    nb::list shown;
    for (int at = 0; at < count; ++at) {
      if (tensors[at].is_valid()) shown.append(tensors[at]);
    }
    event_ = torch().event(nb::str(op), shown);
    event_.attr("__enter__")();
  }
  ~ProfilerEvent() {
    if (!event_.is_valid()) return;
    const nb::object none = nb::none();
    const nb::object name = name_of("__exit__");
    const nb::object left = nb::steal(PyObject_CallMethodObjArgs(
        event_.ptr(), name.ptr(), none.ptr(), none.ptr(), none.ptr(), nullptr));
    if (!left.is_valid()) PyErr_Clear();
  }
  ProfilerEvent(const ProfilerEvent&) = delete;
  ProfilerEvent& operator=(const ProfilerEvent&) = delete;

 private:
  nb::object event_;
};

bool is_varlen(const Arguments& a) {
  return std::any_of(a.tensors + kCuSeqlensQ, a.tensors + kPlaces,
                     [](nb::handle tensor) { return tensor.is_valid(); });
}

nb::object with_autograd(Arguments a, bool want_lse) {
  if (a.tensors[kOut].is_valid()) {
    throw ArgumentError(
        "out is given and an input requires grad: autograd keeps a result of its own, pass "
        "out=None");
  }
  nb::object unwrapped[kPlaces];
  for (int at = 0; at < kPlaces; ++at) {
    if (!a.tensors[at].is_valid()) continue;
    if (kind_of(a.tensors[at]) == Kind::plain_torch) {
      unwrapped[at] = torch_without_wrappers(a.tensors[at]);
      a.tensors[at] = unwrapped[at];
    } else if (!is_tensor(a.tensors[at])) {
      throw nb::type_error((std::string(kTensors[at].name) + " is of type " +
                            name_of_type(a.tensors[at]) +
                            ": a torch tensor is needed where an input requires grad")
                               .c_str());
    }
  }
  for (const Place place : {kAlibiSlopes, kKScale, kVScale, kQScale}) {
    if (!a.tensors[place].is_valid() || !has(a.tensors[place], names().requires_grad)) continue;
    const std::string name = kTensors[place].name;
    throw ArgumentError(name + " requires grad: it has no gradient here, pass " + name +
                        ".detach()");
  }
  const auto or_none = [](nb::handle value) {
    return value.is_valid() ? value : nb::handle(Py_None);
  };
  const nb::object rest =
      nb::make_tuple(a.tensor_tuple(), a.scalar_tuple(), or_none(a.device), a.bhsd, want_lse);
  if (a.same_heads) Call(a, false);  // for its error, before the tuples forget it
  const nb::object given =
      nb::make_tuple(a.tensors[kQ], a.tensors[kK], a.tensors[kV], or_none(a.tensors[kBias]),
                     or_none(a.tensors[kSinks]), rest);
  return checked(PyObject_Call(torch().apply.ptr(), given.ptr(), nullptr));
}

nb::object straight(const Arguments& given, Observers seen, bool want_lse) {
  const ProfilerEvent event(is_varlen(given) ? "fulmen::attention_varlen" : "fulmen::attention",
                            given.tensors, kPlaces);
  Arguments a = given;
  nb::object seed;
  const auto said = [](nb::handle value) { return value.is_valid() && !value.is_none(); };
  if (a.scalars[kDropout].is_valid() && !said(a.scalars[kSeed]) &&
      number("dropout", a.scalars[kDropout]) != 0) {
    seed = torch().seed();
    a.scalars[kSeed] = seed;
  }
  return seen == Observers::autograd ? with_autograd(a, want_lse) : forward(a, want_lse);
}

// The tensors that a backward pass reads besides dout and dlse, in the order in which they are
// saved.
constexpr Place kSaved[] = {kQ,          kK,        kV,        kOut,         kLse,
                            kBias,       kSinks,    kKeepMask, kAlibiSlopes, kCuSeqlensQ,
                            kCuSeqlensK, kSeqlensK, kLeftpadK, kBlockTable,  kKScale,
                            kVScale,     kQScale};

// (ctx, q, k, v, bias, sinks, (tensors, scalars, device, bhsd, want_lse)) -> out, or (out, lse)
PyObject* autograd_forward(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count_given) {
  return for_python([&] {
    if (count_given != 7) throw nb::type_error("autograd_forward: 7 arguments are needed");
    const nb::handle ctx = given[0], rest = given[6];
    need_tuple("autograd_forward's last argument", rest, 5, 5);
    const auto item = [&](int at) { return nb::handle(PyTuple_GetItem(rest.ptr(), at)); };
    const nb::handle scalars = item(1), device = item(2), bhsd = item(3);
    const Arguments arguments(item(0), scalars, device, bhsd.ptr() == Py_True);
    nb::object results = forward(arguments, true);
    const nb::handle out = PyTuple_GetItem(results.ptr(), 0),
                     lse = PyTuple_GetItem(results.ptr(), 1);
    int count = static_cast<int>(std::size(kSaved));
    while (!arguments.tensors[kSaved[count - 1]].is_valid() && kSaved[count - 1] != kLse) --count;
    const nb::object saved = checked(PyTuple_New(count));
    for (int at = 0; at < count; ++at) {
      const Place place = kSaved[at];
      const nb::handle tensor = place == kOut   ? out
                                : place == kLse ? lse
                                                : arguments.tensors[place];
      PyTuple_SetItem(saved.ptr(), at,
                      nb::borrow(tensor.is_valid() ? tensor : nb::handle(Py_None)).release().ptr());
    }
    checked(PyObject_Call(get(ctx, names().save_for_backward).ptr(), saved.ptr(), nullptr));
    checked(PyObject_CallMethodObjArgs(ctx.ptr(), names().set_materialize_grads.ptr(), Py_False,
                                       nullptr));
    if (PyObject_SetAttr(ctx.ptr(), names().options.ptr(),
                         nb::make_tuple(scalars, device, bhsd).ptr()) != 0)
      throw nb::python_error();
    return item(4).ptr() == Py_True ? results : nb::borrow(out);
  });
}

// torch's scaled_dot_product_attention, by its arguments in their order; None, or ArgumentError, if
// it cannot take the direct path.
PyObject* torch_sdpa(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) {
  return for_python([&]() -> nb::object {
    enum { kMask = 3, kProbability, kIsCausal, kSoftmaxScale, kEnableGqa, kCount };
    if (count != kCount) throw nb::type_error("torch_sdpa: 8 arguments are needed");
    const nb::handle mask = given[kMask];
    const bool is_causal = flag("is_causal", given[kIsCausal]);
    if (number("dropout_p", given[kProbability]) >= 1 || (is_causal && !mask.is_none()))
      return nb::none();
    for (const int at : {0, 1, 2}) {
      if (kind_of(given[at]) != Kind::plain_torch) return nb::none();
    }
    Arguments a;
    std::copy_n(given, 3, a.tensors);
    if (!mask.is_none()) {
      if (kind_of(mask) != Kind::plain_torch || has(mask, names().is_meta)) return nb::none();
      // This may be a keep_mask, too: who sees the call need not know, and its memory is looked at
      // when it is known.
      a.tensors[kBias] = mask;
    }
    a.bhsd = true;
    a.same_heads = !flag("enable_gqa", given[kEnableGqa]);
    a.scalars[kScale] = given[kSoftmaxScale];
    a.scalars[kDropout] = given[kProbability];
    if (is_causal) a.scalars[kCausal] = names().top_left;
    const Observers seen = observers(a.tensors, kPlaces);
    if (seen == Observers::others) return nb::none();
    if (!mask.is_none() && read_array(mask, "attn_mask").dtype == FULMEN_BOOLEAN)
      std::swap(a.tensors[kBias], a.tensors[kKeepMask]);
    return straight(a, seen, false);
  });
}

}  // namespace

void set_torch(nb::dict functions) {
  Torch& t = torch();
  t.questions.clear();
  for (const nb::handle one : functions["questions"]) t.questions.push_back(nb::borrow(one));
  const auto set = [&](nb::object& to, const char* name) { to = functions[name]; };
  set(t.forward_ad, "forward_ad"), set(t.grad_enabled, "grad_enabled"),
      set(t.inference_mode, "inference_mode");
  set(t.deterministic, "deterministic"), set(t.seed, "seed");
  set(t.profiled, "profiled"), set(t.event, "event");
  set(t.dispatched, "dispatched"), set(t.apply, "apply");
  set(t.refuse_double_backward, "refuse_double_backward");
  set(t.tensor, "tensor");
  set_torch_memory(functions);
  for (const nb::handle type : functions["plain_types"]) set_plain_torch(type);
}

int torch_observers_of(nb::tuple tensors) {
  need_torch();
  const Arguments arguments(tensors, nb::make_tuple(), nb::none(), false);
  return static_cast<int>(observers(arguments.tensors, kPlaces));
}

nb::object autograd_backward(nb::handle ctx, nb::handle given_dout, nb::handle dlse) {
  const nb::object none = nb::none();
  nb::object dout = nb::borrow(given_dout);
  need_torch();
  if (dout.is_none() && dlse.is_none()) return nb::make_tuple(none, none, none, none, none, none);
  const nb::object saved = get(ctx, names().saved_tensors),
                   needed = get(ctx, names().needs_input_grad);
  const nb::object options = get(ctx, names().options);
  need_tuple("ctx.saved_tensors", saved, 0, std::size(kSaved));
  need_tuple("ctx.needs_input_grad", needed, 5, 6);
  need_tuple("ctx.options", options, 3, 3);
  int wanted = 0;
  for (int bit = 0; bit < 5; ++bit) {
    if (PyTuple_GetItem(needed.ptr(), bit) == Py_True) wanted |= 1 << bit;
  }
  const auto option = [&](int at) { return nb::handle(PyTuple_GetItem(options.ptr(), at)); };
  Arguments arguments(nb::make_tuple(), option(0), option(1), option(2).ptr() == Py_True);
  for (Py_ssize_t at = 0; at < PyTuple_Size(saved.ptr()); ++at) {
    const nb::handle tensor = PyTuple_GetItem(saved.ptr(), at);
    if (!tensor.is_none()) arguments.tensors[kSaved[at]] = tensor;
  }
  if (dout.is_none())
    dout = nb::module_::import_("torch").attr("zeros_like")(arguments.tensors[kOut]);
  if (const Array view = read_array(dout, "dout");
      view.ndim > 0 && view.shape[view.ndim - 1] > 1 && view.strides[view.ndim - 1] != 1) {
    dout = checked(PyObject_CallMethodObjArgs(dout.ptr(), names().contiguous.ptr(), nullptr));
  }
  arguments.tensors[kDout] = dout;
  if (!dlse.is_none()) arguments.tensors[kDlse] = dlse;
  arguments.scalars[kTuning] = {};  // the forward kernel's
  // Where the caller says nothing, torch does.
  nb::handle& deterministic = arguments.scalars[kDeterministic];
  if (!answers_nothing(torch().deterministic)) {
    deterministic = Py_True;
  } else if (!deterministic.is_valid() || deterministic.is_none()) {
    deterministic = Py_False;
  }
  const ProfilerEvent event(
      is_varlen(arguments) ? "fulmen::attention_varlen_backward" : "fulmen::attention_backward",
      arguments.tensors, kPlaces);
  nb::object g = backward(arguments, wanted);
  if (!answers_nothing(torch().grad_enabled))
    g = torch().refuse_double_backward(g, saved, dout, dlse);  // create_graph=True
  return nb::make_tuple(g[0], g[1], g[2], g[3], g[4], none);
}

nb::object torch_forward(const Arguments& arguments, bool want_lse) {
  const Observers seen = observers(arguments.tensors, kPlaces);
  if (seen != Observers::others) return straight(arguments, seen, want_lse);
  const nb::handle device = arguments.device.is_valid() ? arguments.device : nb::handle(Py_None);
  return torch().dispatched(arguments.tensor_tuple(), arguments.scalar_tuple(), device,
                            arguments.bhsd, want_lse);
}

nb::object torch_forward_of(nb::tuple tensors, nb::tuple options, nb::handle device, bool bhsd,
                            bool want_lse) {
  need_torch();
  return torch_forward(Arguments(tensors, options, device, bhsd), want_lse);
}

PyMethodDef* torch_methods() {
  static PyMethodDef kMethods[] = {
      {"torch_sdpa", as_method(torch_sdpa), METH_FASTCALL, nullptr},
      {"autograd_forward", as_method(autograd_forward), METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  return kMethods;
}

}  // namespace fulmen::python
