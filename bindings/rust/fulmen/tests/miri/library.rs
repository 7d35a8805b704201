//! A few of the library's functions, as fakes. They keep what the real ones keep, for as long, and
//! call back as they do, so miri sees each access that the crate allows them.
#![allow(clippy::missing_safety_doc)]

use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr;
use std::sync::Mutex;

use fulmen_sys as sys;

struct Shared<T>(T);

// SAFETY: the crate's callbacks are for any thread.
unsafe impl<T> Send for Shared<T> {}

static BACKENDS: Mutex<Vec<(CString, Shared<sys::fulmen_backend>)>> = Mutex::new(Vec::new());

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn fail(status: sys::fulmen_status, message: &CStr) -> c_int {
    let message = [c"the fake: ".to_bytes(), message.to_bytes()].concat();
    ERROR.set(CString::new(message).unwrap());
    status as c_int
}

#[no_mangle]
extern "C" fn fulmen_last_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}

#[no_mangle]
unsafe extern "C" fn fulmen_options_init_sized(options: *mut sys::fulmen_options, size: usize) {
    (*options).struct_size = size;
    (*options).softmax_scale = f32::NAN;
    (*options).deterministic = true;
}

#[no_mangle]
unsafe extern "C" fn fulmen_register_backend(backend: *const sys::fulmen_backend) -> c_int {
    let name = CStr::from_ptr((*backend).name).to_owned();
    if name.to_bytes().contains(&b':') {
        return fail(sys::FULMEN_INVALID_ARGUMENT, c"name");
    }
    BACKENDS.lock().unwrap().push((name, Shared(*backend)));
    sys::FULMEN_OK as c_int
}

#[no_mangle]
unsafe extern "C" fn fulmen_unregister_backend(name: *const c_char) -> c_int {
    let name = CStr::from_ptr(name);
    BACKENDS
        .lock()
        .unwrap()
        .retain(|(other, _)| other.as_c_str() != name);
    sys::FULMEN_OK as c_int
}

struct Plan {
    device: CString,
    backend: Option<sys::fulmen_backend>,
    options: sys::fulmen_options,
    backward: bool,
}

unsafe fn plan(
    tensors: *const sys::fulmen_tensors,
    options: *const sys::fulmen_options,
    device: *const c_char,
    backward: bool,
) -> Result<Box<Plan>, c_int> {
    let device = CStr::from_ptr(device).to_owned();
    let backends = BACKENDS.lock().unwrap();
    let backend = backends.iter().find(|(name, _)| *name == device);
    let backend = backend.map(|(_, backend)| backend.0);
    drop(backends);
    if let Some(backend) = &backend {
        let mut reason = [0 as c_char; 8];
        let (room, size) = (reason.as_mut_ptr(), reason.len());
        if !backend.supports.unwrap()(backend.context, tensors, options, room, size) {
            return Err(fail(sys::FULMEN_UNSUPPORTED, CStr::from_ptr(room)));
        }
    }
    Ok(Box::new(Plan {
        device,
        backend,
        options: *options,
        backward,
    }))
}

unsafe fn run(plan: &Plan, tensors: *const sys::fulmen_tensors, workspace: *mut c_void) -> c_int {
    if let Some(backend) = &plan.backend {
        let run = if plan.backward {
            backend.run_backward
        } else {
            backend.run
        };
        let status = run.unwrap()(backend.context, ptr::null_mut(), tensors, &plan.options);
        // The library has a sentence of its own, to which the crate adds the callback's.
        return match status as sys::fulmen_status {
            sys::FULMEN_OK => status,
            error => {
                fail(error, c"");
                ERROR.set(c"the fake".to_owned());
                error as c_int
            }
        };
    }
    if !workspace.is_null() {
        workspace.cast::<u8>().write_bytes(1, WORKSPACE);
    }
    // The first pass of a kernel that copies q, row by row, in the caller's pool.
    unsafe extern "C" fn task(argument: *mut c_void, row: i64) {
        let tensors = &*argument.cast::<sys::fulmen_tensors>();
        let per_row = (tensors.q.shape[2] * tensors.q.shape[3]) as usize;
        let at = row as usize * per_row;
        let from = tensors.q.data.cast::<f32>().add(at);
        ptr::copy_nonoverlapping(from, tensors.out.data.cast::<f32>().add(at), per_row);
    }
    let (context, rows) = (plan.options.parallel_for_context, (*tensors).q.shape[1]);
    plan.options.parallel_for.unwrap()(context, rows, Some(task), tensors.cast_mut().cast());
    sys::FULMEN_OK as c_int
}

#[no_mangle]
unsafe extern "C" fn fulmen_attention(
    tensors: *const sys::fulmen_tensors,
    options: *const sys::fulmen_options,
    device: *const c_char,
) -> c_int {
    match plan(tensors, options, device, false) {
        Ok(plan) => run(&plan, tensors, ptr::null_mut()),
        Err(status) => status,
    }
}

#[no_mangle]
unsafe extern "C" fn fulmen_attention_backward(
    tensors: *const sys::fulmen_tensors,
    options: *const sys::fulmen_options,
    device: *const c_char,
) -> c_int {
    match plan(tensors, options, device, true) {
        Ok(plan) => run(&plan, tensors, ptr::null_mut()),
        Err(status) => status,
    }
}

#[no_mangle]
unsafe extern "C" fn fulmen_plan_create(
    tensors: *const sys::fulmen_tensors,
    options: *const sys::fulmen_options,
    device: *const c_char,
    out: *mut *mut sys::fulmen_plan,
) -> c_int {
    match plan(tensors, options, device, false) {
        Ok(plan) => *out = Box::into_raw(plan).cast(),
        Err(status) => return status,
    }
    sys::FULMEN_OK as c_int
}

#[no_mangle]
unsafe extern "C" fn fulmen_plan_destroy(plan: *mut sys::fulmen_plan) {
    drop(Box::from_raw(plan.cast::<Plan>()));
}

#[no_mangle]
unsafe extern "C" fn fulmen_plan_device(plan: *const sys::fulmen_plan) -> *const c_char {
    (*plan.cast::<Plan>()).device.as_ptr()
}

const WORKSPACE: usize = 64;

#[no_mangle]
extern "C" fn fulmen_plan_workspace_bytes(_: *const sys::fulmen_plan) -> usize {
    WORKSPACE
}

#[no_mangle]
unsafe extern "C" fn fulmen_plan_run(
    plan: *const sys::fulmen_plan,
    _: *mut c_void,
    tensors: *const sys::fulmen_tensors,
    workspace: *mut c_void,
    _: usize,
) -> c_int {
    run(&*plan.cast::<Plan>(), tensors, workspace)
}

#[no_mangle]
unsafe extern "C" fn fulmen_visit_devices(
    visit: Option<unsafe extern "C" fn(*mut c_void, *const sys::fulmen_device_info)>,
    context: *mut c_void,
) -> c_int {
    let text = c"cpu".to_owned(); // gone when the visitor has returned
    let device = sys::fulmen_device_info {
        struct_size: size_of::<sys::fulmen_device_info>(),
        name: text.as_ptr(),
        chip: text.as_ptr(),
        features: text.as_ptr(),
        usable: true,
        reason: text.as_ptr(),
        host_memory: true,
    };
    visit.unwrap()(context, &device);
    sys::FULMEN_OK as c_int
}

/// The size stands before the memory.
fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes + 64, 64).unwrap()
}

#[no_mangle]
unsafe extern "C" fn fulmen_device_allocate(
    _: *const c_char,
    bytes: usize,
    memory: *mut *mut c_void,
) -> c_int {
    let block = alloc_zeroed(layout(bytes));
    block.cast::<usize>().write(bytes);
    *memory = block.add(64).cast();
    sys::FULMEN_OK as c_int
}

#[no_mangle]
unsafe extern "C" fn fulmen_device_free(_: *const c_char, memory: *mut c_void) {
    let block = memory.cast::<u8>().sub(64);
    dealloc(block, layout(block.cast::<usize>().read()));
}

#[no_mangle]
unsafe extern "C" fn fulmen_device_copy(
    _: *const c_char,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), bytes);
    sys::FULMEN_OK as c_int
}

#[no_mangle]
unsafe extern "C" fn fulmen_set_log_callback(
    callback: Option<unsafe extern "C" fn(*mut c_void, *const c_char)>,
    context: *mut c_void,
) -> c_int {
    let line = c"a line".to_owned();
    callback.unwrap()(context, line.as_ptr());
    sys::FULMEN_OK as c_int
}

/// Takes memory, writes all of it and gives it back.
#[no_mangle]
unsafe extern "C" fn fulmen_set_allocator(allocator: *const sys::fulmen_allocator) -> c_int {
    if allocator.is_null() {
        return sys::FULMEN_OK as c_int;
    }
    let raw = &*allocator;
    let memory = raw.allocate.unwrap()(raw.context, 100, 64);
    if memory.is_null() {
        return fail(sys::FULMEN_OUT_OF_MEMORY, c"no memory");
    }
    ptr::write_bytes(memory.cast::<u8>(), 1, 100);
    raw.free.unwrap()(raw.context, memory, 100);
    sys::FULMEN_OK as c_int
}

unsafe fn fill(shape: [i64; 4], to: *mut f64) {
    let count: i64 = shape.iter().product();
    if !to.is_null() {
        (0..count as usize).for_each(|n| to.add(n).write(1.));
    }
}

#[no_mangle]
unsafe extern "C" fn fulmen_reference_backward(
    tensors: *const sys::fulmen_tensors,
    _: *const sys::fulmen_options,
    dq: *mut f64,
    dk: *mut f64,
    dv: *mut f64,
    dbias: *mut f64,
    dsinks: *mut f64,
) -> c_int {
    let t = &*tensors;
    fill(t.q.shape, dq);
    fill(t.k.shape, dk);
    fill(t.v.shape, dv);
    fill(t.dbias.shape, dbias);
    fill([1, 1, 1, t.q.shape[2]], dsinks);
    sys::FULMEN_OK as c_int
}

#[no_mangle]
unsafe extern "C" fn fulmen_visit_gradient_errors(
    _: *const sys::fulmen_tensors,
    _: *const sys::fulmen_options,
    visit: Option<unsafe extern "C" fn(*mut c_void, *const c_char, f64, f64, f64)>,
    context: *mut c_void,
) -> c_int {
    for name in [c"dq", c"dk"] {
        let name = name.to_owned(); // gone when the visitor has returned
        visit.unwrap()(context, name.as_ptr(), 2., 0.5, 1.);
    }
    fail(sys::FULMEN_VERIFICATION_FAILED, c"dq is wrong")
}
